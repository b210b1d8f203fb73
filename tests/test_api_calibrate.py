"""``kvsim.calibrate``: the answer of the command, as an object."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from test_calibration import LOADS, results

import kvsim
import workloads
from kvsim.api.calibrate_result import Calibrated
from kvsim.cli import main

LOG = (
    "Initializing a V1 LLM engine (v0.33.0) with config: model='meta-llama/Llama-3.1-8B', "
    "max_model_len=16384, max_num_seqs=64)\n"
    "GPU 0: NVIDIA H100 80GB HBM3 (UUID: 1)\nModel loading took 14.99 GiB and 3 seconds\n"
    "Available KV cache memory: 54.0 GiB\nGPU KV cache size: 442,368 tokens\n"
)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("server.log").write_text(LOG)
    return Path("server.log")


def test_a_log_gives_what_the_command_gives(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = kvsim.calibrate(log=log)
    main(["calibrate", "--log", str(log), "--json", "-"])
    told = json.loads(capsys.readouterr().out)
    assert {k: v for k, v in told.items() if k not in ("out", "use", "line")} == found.to_dict()
    main(["calibrate", "--log", str(log)])
    assert repr(found) == capsys.readouterr().out.rstrip("\n")
    main(["calibrate", "--log", str(log), "--out", "command.toml"])
    found.save("object.toml")
    assert Path("object.toml").read_text() == Path("command.toml").read_text()


def test_a_run_takes_its_options(log: Path) -> None:
    found = kvsim.calibrate(log=log)
    found.save("c.toml")
    options = found.options("c.toml")
    assert options["max_num_seqs"] == 64
    assert options["logged"]["weights"] == 14.99
    assert "cost_model" not in options  # no benchmark, no constant
    trace = workloads.fixed(prompt=100, output=10, num_requests=4)
    result = kvsim.simulate(trace, **options, backend="python")
    blocks = result.summary["kv_cache"]["num_gpu_blocks"]
    assert blocks == pytest.approx(442368 // 16, rel=1e-3)


def test_errors_of_benchmarks_are_rows_and_a_figure() -> None:
    before, after = {"ttft": 50.0, "tpot": -20.0}, {"ttft": 5.0, "tpot": -1.0}
    run = {"name": "a.json", "before": before, "after": after}
    answer: dict[str, Any] = {"fitted": [run], "held_out": [run | {"name": "b.json"}]}
    found = Calibrated(answer, {}, {})
    assert found.errors["is_held_out"].tolist() == [False, False, True, True]
    assert found.errors["after"].tolist() == [5.0, -1.0, 5.0, -1.0]
    panels = found.plot().axes
    assert [bar.get_width() for bar in panels[0].patches] == [50.0, 50.0, 5.0, 5.0]
    with pytest.raises(ValueError, match="no figure"):
        Calibrated({"fitted": [], "held_out": []}, {}, {}).plot()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "calibrate needs --log SERVER.log, --bench RESULT.json or --collect URL"),
        ({"log": "no-such.log"}, "no-such.log: cannot be read"),
        ({"bench": "no-such.json", "model": "opt-13b"}, "no-such.json: cannot be read"),
        ({"log": "server.log", "cost_model": "roofline"}, "cost_model is not an option"),
        ({"log": "server.log", "block_size": 0}, "block_size is 0: must be a whole number"),
        ({"log": "server.log", "hold_out": "x.json"}, "--hold-out x.json: must be one of"),
    ],
)
def test_mistakes_are_one_line(given: dict[str, Any], told: str, log: Path) -> None:
    with pytest.raises(ValueError, match=told) as error:
        kvsim.calibrate(**given)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_benchmarks_give_what_the_command_gives(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = results(tmp_path, {"bandwidth": 0.8, "arithmetic": 0.7}, 0, LOADS[:2])
    paths = [path.name for path in made]
    found = kvsim.calibrate(log=log, bench=paths, hold_out=paths[0])
    main(["calibrate", "--log", str(log), "--bench", *paths, "--hold-out", paths[0], "--json", "-"])
    told = json.loads(capsys.readouterr().out)
    assert told["constants"] == found.answer["constants"]
    assert told["held_out"] == found.answer["held_out"]
    assert found.table["name"].tolist() == [one["name"] for one in told["constants"]]
    found.save("c.toml")
    tomllib.loads(Path("c.toml").read_text())
    kvsim.simulate(
        workloads.fixed(prompt=100, output=10, num_requests=4), **found.options("c.toml")
    )
