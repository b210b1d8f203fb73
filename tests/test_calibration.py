"""Constants fitted to a server: found again where they are known, left alone where they are not."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

import kvsim
from kvsim.calibration.answer import undecided
from kvsim.calibration.calibrate import Calibration, calibrate, mean_error
from kvsim.calibration.fit import fit
from kvsim.calibration.parameters import FACTORS, KNOBS, constants
from kvsim.calibration.read_bench import read_bench
from kvsim.cli import main
from kvsim.cost.efficiency import Efficiency, efficiency_of
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.calibration.bench import Measured

SERVER = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
#: What the made server has: less bandwidth and arithmetic, a slower host, and a front end.
TRUE = {"bandwidth": 0.8, "arithmetic": 0.7, "step": 6e-4, "front_end_latency": 0.012}
#: Clients, prompt and output tokens of the made benchmarks.
LOADS = ((1, 128, 24), (8, 256, 24), (2, 3000, 24), (32, 256, 24), (16, 2000, 24))


def results(
    folder: Path,
    true: Mapping[str, float],
    seed: int,
    loads: Sequence[tuple[int, int, int]] = LOADS,
) -> list[Path]:
    """Write what ``vllm bench serve --save-result`` would, of a simulated server with 2 % noise."""
    rng = np.random.default_rng(seed)
    file = folder / "true.toml"
    file.write_text(tomli_w.dumps({SERVER["gpu"]: constants(SERVER["gpu"], true)}))
    paths = []
    for clients, prompt, output in loads:
        n = max(4 * clients, 8)
        summary = kvsim.simulate(
            Trace.from_arrays(np.zeros(n), [prompt] * n, [output] * n),
            **SERVER,  # type: ignore[arg-type]
            max_concurrency=clients,
            cost_model=f"roofline+constants={file}",
            front_end_latency=true.get("front_end_latency", 0.0),
        ).summary
        noise = np.exp(0.02 * rng.standard_normal(2))
        result = {
            **{"request_rate": "inf", "max_concurrency": clients, "completed": n},
            **{"total_input_tokens": n * prompt, "total_output_tokens": n * output},
            "mean_ttft_ms": summary["mean_ttft_ms"] * noise[0],
            "mean_tpot_ms": summary["mean_tpot_ms"] * noise[1],
        }
        paths.append(folder / f"c{clients}-{prompt}.json")
        paths[-1].write_text(json.dumps(result))
    return paths


def runs_of(paths: Sequence[Path]) -> list[Measured]:
    return [run for path in paths for run in read_bench(path)]


def inside(found: Calibration, true: Mapping[str, float]) -> dict[str, bool]:
    """Say of each decided constant whether its interval holds the truth."""
    truth = {
        parameter.name: 1.0 if parameter.is_share else parameter.default for parameter in KNOBS
    } | dict(true)
    held = {}
    for one in found.estimates:
        if not one.reason:
            assert one.low is not None
            assert one.high is not None
            held[one.name] = one.low <= truth[one.name] <= one.high
    return held


# The fit


def line(x: np.ndarray[Any, Any], places: Any, measured: Any) -> Any:
    return x[0] + x[1] * places - measured


@pytest.mark.long
def test_intervals_of_a_line_cover_it_as_often_as_they_say() -> None:
    places, rng, hits = np.linspace(0, 1, 8), np.random.default_rng(3), 0
    for _ in range(400):
        measured = 0.3 + 0.5 * places + rng.normal(0, 0.02, 8)
        found = fit(lambda x: line(x, places, measured), [0.0, 0.0], [(-5, 5)] * 2, ["a"] * 8)  # noqa: B023
        hits += int(np.sum(np.abs(found.x - [0.3, 0.5]) <= found.half_widths))
    assert 0.92 < hits / 800 < 0.98


def test_a_number_that_moves_nothing_has_no_interval() -> None:
    found = fit(
        lambda x: np.array([x[0] - 1.0, x[0] - 1.1, x[0] - 0.9]),
        [0.0, 0.0],
        [(-5, 5)] * 2,
        ["a"] * 3,
    )
    assert found.x[0] == pytest.approx(1.0)
    assert np.isinf(found.half_widths[1])
    assert np.isfinite(found.half_widths[0])


def test_numbers_stay_within_their_bounds() -> None:
    found = fit(lambda x: np.array([x[0] + 1, x[0] + 1.01]), [0.5], [(0.0, 5.0)], ["a", "a"])
    assert found.x[0] == 0.0


# What is fitted


def test_knobs_name_constants_that_there_are() -> None:
    names = set(Efficiency.__dataclass_fields__)
    assert set(FACTORS["bandwidth"]) | set(FACTORS["arithmetic"]) <= names
    rate = efficiency_of("h100-sxm")
    half = constants("h100-sxm", {"bandwidth": 0.5, "step": 1e-3})
    assert half["weights"] == rate.weights / 2
    assert half["experts"]["mxfp4"] == {"weights": rate.experts["mxfp4"].weights / 2}
    assert half["step"] == 1e-3
    assert "gemm" not in half
    assert constants("h100-sxm", {}) == {}


@pytest.mark.long
def test_known_constants_are_found_within_their_intervals(tmp_path: Path) -> None:
    true = {"bandwidth": 0.8, "arithmetic": 0.7}
    paths = results(tmp_path, true, 0, LOADS[1:])
    found = calibrate(SERVER, runs_of(paths[:-1]), runs_of(paths[-1:]))
    held = inside(found, true)
    assert held["bandwidth"]
    assert held["arithmetic"]
    before, after = (mean_error(found.held_out, after=which) for which in (False, True))
    assert before is not None
    assert after is not None
    assert after < 5
    assert before > 15


@pytest.mark.slow
def test_intervals_of_calibrations_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    held: list[bool] = []
    for seed in range(10):
        found = calibrate(SERVER, runs_of(results(tmp_path, TRUE, seed)))
        told = inside(found, TRUE)
        assert {"bandwidth", "arithmetic", "front_end_latency"} & set(told)
        held += told.values()
    assert len(held) >= 20
    assert np.mean(held) >= 0.9


@pytest.mark.long
def test_what_the_files_cannot_decide_stays_and_is_told_why(tmp_path: Path) -> None:
    paths = results(tmp_path, TRUE, 1, ((1, 128, 16), (1, 130, 16), (1, 126, 16)))
    found = calibrate(SERVER, runs_of(paths))
    left = {one.name: one for one in found.estimates if one.reason}
    assert {"step", "request"} <= set(left)  # a batch of one cannot tell them from bandwidth
    for one in left.values():
        assert one.value == one.default
        assert one.reason
        assert one.name not in found.values


@pytest.mark.slow
def test_a_server_as_the_defaults_have_it_keeps_them(tmp_path: Path) -> None:
    found = calibrate(SERVER, runs_of(results(tmp_path, {}, 2, LOADS[1:])))
    assert all(inside(found, {}).values())


def loops(sample_data: Path, folder: Path, tp: int) -> dict[tuple[int, int, int], Path]:
    """Write measured closed loops of Qwen3-32B on H100s, vLLM 0.12, as results: TPOT alone.

    What a request waited before its first token was measured under a client nobody described.
    """
    table = pd.read_csv(sample_data / "serving/measured_serving_points.csv")
    table = table[(table.backend == "vllm") & (table.tp_size == tp) & (table.osl <= 512)]
    paths = {}
    for row in table[table.concurrency <= 16].itertuples():
        n = int(2 * row.concurrency)
        result = {
            **{"request_rate": "inf", "max_concurrency": int(row.concurrency), "completed": n},
            **{"total_input_tokens": n * row.isl, "total_output_tokens": n * row.osl},
            **{"mean_ttft_ms": None, "mean_tpot_ms": row.silicon_tpot_ms},
        }
        key = (int(row.isl), int(row.osl), int(row.concurrency))
        paths[key] = folder / f"tp{tp}-{'-'.join(map(str, key))}.json"
        paths[key].write_text(json.dumps(result))
    return paths


LOOP_SERVER: dict[str, Any] = {
    **{"model": "qwen3-32b", "gpu": "h100-sxm", "max_num_batched_tokens": 8192},
    **{"enable_prefix_caching": False, "async_scheduling": False, "vllm_version": "0.12"},
}


@pytest.mark.slow
@pytest.mark.parametrize("tp", [4, 8])
def test_measured_loops_that_were_held_out_are_met_better(
    sample_data: Path, tmp_path: Path, tp: int
) -> None:
    paths = loops(sample_data, tmp_path, tp)
    errors = []
    for key in ((1024, 512, 8), (1024, 128, 16), (4096, 512, 16)):
        others = [path for other, path in paths.items() if other != key]
        found = calibrate(
            LOOP_SERVER | {"tensor_parallel_size": tp}, runs_of(others), runs_of([paths[key]])
        )
        errors.append([mean_error(found.held_out, after=which) for which in (False, True)])
    before, after = np.mean(np.array(errors, dtype=float), axis=0)
    assert after < before


@pytest.mark.slow
def test_a_measured_loop_that_was_held_out_is_met_better(sample_data: Path, tmp_path: Path) -> None:
    paths = loops(sample_data, tmp_path, 8)
    keys = ((1024, 128, 8), (4096, 128, 8), (1024, 128, 16), (4096, 128, 16), (1024, 512, 16))
    kept = [paths[key] for key in keys]
    found = calibrate(
        LOOP_SERVER | {"tensor_parallel_size": 8}, runs_of(kept), runs_of([paths[1024, 512, 8]])
    )
    before, after = (mean_error(found.held_out, after=which) for which in (False, True))
    assert before is not None
    assert after is not None
    assert after < before


# The command


@pytest.mark.long
def test_the_command_writes_what_runs_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    true = {"bandwidth": 0.8, "arithmetic": 0.7}
    paths = [path.name for path in results(tmp_path, true, 0, LOADS[1:])]
    log = "Initializing a V1 LLM engine (v0.33.0) with config: model='meta-llama/Llama-3.1-8B')\n"
    log += "GPU 0: NVIDIA H100 80GB HBM3 (UUID: 1)\nModel loading took 14.99 GiB and 3 seconds\n"
    log += "Available KV cache memory: 54.0 GiB\nGPU KV cache size: 442,368 tokens\n"
    Path("server.log").write_text(log)
    main(["calibrate", "--log", "server.log", "--bench", *paths, "--out", "c.toml", "--json", "-"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == "0.33.0"
    assert answer["server"]["gpu"] == "h100-sxm"
    assert answer["server"]["num_gpu_blocks_override"] == 442368 // 16
    assert [one["name"] for one in answer["held_out"]] == [paths[-1]]
    means = answer["error_percent"]
    assert means["held_out_after"] < means["held_out_before"]
    table = tomllib.loads(Path("c.toml").read_text())
    assert table["h100-sxm"]["weights"] < efficiency_of("h100-sxm").weights
    assert answer["use"].startswith("--cost-model roofline+constants=c.toml")
    asked = ["run", "--model", "llama-3.1-8b", "--gpu", "h100-sxm", "--num-requests", "20"]
    tpots = []
    for more in ([], answer["use"].split()):
        main([*asked, *more, "--json", "-"])
        summary = json.loads(capsys.readouterr().out)
        tpots.append(summary["mean_tpot_ms"])
    assert tpots[1] > 1.1 * tpots[0]
    assert summary["kv_cache"]["num_gpu_blocks"] == pytest.approx(442368 // 16, rel=1e-3)


def test_a_log_alone_tells_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = Path(__file__).parent / "data" / "logs"
    monkeypatch.chdir(tmp_path)
    log = str(logs / "vllm-0.8-v1.log")
    asked = ["--model", "llama-3.1-8b", "--gpu", "l40s", "--gpu-memory-utilization", "0.9"]
    main(["calibrate", "--log", log, *asked, "--out", "c.toml"])
    assert "overhead" in capsys.readouterr().out
    assert set(tomllib.loads(Path("c.toml").read_text())["logged"]) >= {"weights", "non_torch"}
    main(["capacity", *asked, "--logged", "c.toml", "--max-model-len", "32768", "--json", "-"])
    assert json.loads(capsys.readouterr().out)["num_tokens"] == pytest.approx(158656, rel=2e-3)


def test_the_printed_line_has_the_servers_own_flags_and_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log's 54.25 GiB at utilisation 0.9; a run's default is 0.92."""
    monkeypatch.chdir(tmp_path)
    Path("server.log").write_text(
        "Initializing a V1 LLM engine (v0.33.0) with config: model='meta-llama/Llama-3.1-8B', "
        "max_model_len=16384, max_num_seqs=64, max_num_batched_tokens=8192, "
        "gpu_memory_utilization=0.9, enable_prefix_caching=False)\n"
        "GPU 0: NVIDIA H100 80GB HBM3 (UUID: 1)\n"
        "Model loading took 14.99 GiB and 3 seconds\n"
        "Available KV cache memory: 54.25 GiB\nGPU KV cache size: 444,416 tokens\n"
    )
    main(["calibrate", "--log", "server.log", "--out", "c.toml"])
    printed = capsys.readouterr()
    line = printed.out.strip().splitlines()[-1].split()
    assert line[:2] == ["kvsim", "run"]
    assert "--no-enable-prefix-caching" in line
    assert line[-2:] == ["--logged", "c.toml"]
    assert "--num-gpu-blocks-override" not in line
    assert "note: no --bench is given: step times stay those of h100-sxm" in printed.err
    main([*line[1:], "--num-requests", "2", "--workload", "fixed", "--json", "-"])
    summary = json.loads(capsys.readouterr().out)
    assert summary["kv_cache"]["bytes"] / 2**30 == pytest.approx(54.25, abs=0.005)


def test_a_calibration_that_decides_nothing_says_so() -> None:
    answer = {"server": {"gpu": "h100-sxm"}, "constants": [{"name": "step", "reason": "all alike"}]}
    told = "these runs determine no constant: step times stay those of h100-sxm"
    assert undecided(answer, {}) == [told]
    assert undecided(answer, {"step": 1e-3}) == []


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ([], "calibrate needs --log SERVER.log"),
        (["--log", "no.log"], "--log no.log: cannot be read: No such file or directory"),
        (["--bench", "no.json", "--gpu", "l4"], "--bench no.json: cannot be read: No such file"),
        (["--log", "empty.log"], "--log empty.log: must be a start-up log of vLLM or SGLang"),
        (["--log", "empty.log", "--out", "no/c.toml"], "--out no/c.toml: cannot be written"),
        (["--bench", "a", "b", "--hold-out", "c"], "--hold-out c: must be one of the files"),
        (["--bench", "a", "a"], "--bench: a file is given twice"),
    ],
)
def test_mistakes_are_told_in_one_line(
    asked: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.log").write_text("")
    with pytest.raises(SystemExit) as stopped:
        main(["calibrate", *asked])
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert told in lines[0]
    assert not Path("c.toml").exists()


def test_logged_takes_a_file_or_pairs_and_tells_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text("[h100-sxm]\nstep = 1e-3\n")
    for given, told in (
        (["c.toml"], "--logged c.toml: has no table [logged]"),
        (["no.toml"], "no.toml: cannot be read"),
    ):
        with pytest.raises(SystemExit):
            main(["capacity", "--model", "llama-3.1-8b", "--gpu", "l4", "--logged", *given])
        assert told in capsys.readouterr().err
