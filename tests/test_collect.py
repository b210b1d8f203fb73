"""Calibration of a running server: what its client sends, sees and finds."""

from __future__ import annotations

import asyncio
import json
import threading
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tomli_w

pytest.importorskip("aiohttp")
pytest.importorskip("msgspec")
pytest.importorskip("prometheus_client")

from aiohttp.test_utils import TestServer

from kvsim.calibration import collect as collecting
from kvsim.calibration.calibrate import calibrate
from kvsim.calibration.collect import Loop, about, collect, counted, loops_for, notes_on
from kvsim.calibration.parameters import constants
from kvsim.calibration.vllm_bench import runs
from kvsim.cli import main
from kvsim.config import RunConfig
from kvsim.fleet.simulate import run as serve_trace
from kvsim.serve.start import Endpoint, make_server
from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
SMALL = {"num_gpu_blocks_override": 64, "max_model_len": 512, "backend": "python"}
LOOPS = (Loop(1, 40, 6), Loop(3, 60, 6), Loop(2, 400, 4))


@contextmanager
def running(clock: str, **options: Any) -> Iterator[str]:
    """Serve in a thread; yields the address."""
    server = make_server(
        Endpoint(names=[MODEL], clock=clock), {"model": MODEL, "gpu": "h100-sxm", **options}
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result(30)

    listener = TestServer(server.app())
    try:
        wait(listener.start_server())
        yield str(listener.make_url("/"))
    finally:
        wait(listener.close())
        server.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_loops_send_what_they_say_and_see_what_the_server_does() -> None:
    with running("50", **SMALL) as url:
        before = about(url, {"gpu": "h100-sxm"})
        results = collect(before, LOOPS, speed=50.0)
        after = about(url, {})
    assert before.options == {
        "model": MODEL,
        "max_model_len": 512,
        "vllm_version": "0.33.0",
        "block_size": 16,
        "num_gpu_blocks_override": 64,
    }
    for loop, result, run in zip(LOOPS, results, runs("url", results) or [], strict=True):
        assert sorted(result["input_lens"]) == sorted(loop.lengths[:, 0])
        assert sorted(result["output_lens"]) == sorted(loop.lengths[:, 1])
        assert run.max_concurrency == loop.clients
        assert run.ttft is not None
        assert run.ttft > 0.003  # a step of the server's clock
        assert run.tpot is not None
    sent = 1 + sum(len(loop.lengths) for loop in LOOPS)
    assert after.counters["request_success"] == sent
    assert notes_on(before, after, sent) == []
    assert notes_on(before, after, sent - 2) == ["2 requests of others ended during the loops"]
    assert "no /metrics" in notes_on(before, after._replace(counters={}), sent)[0]


@pytest.mark.long
def test_the_command_says_the_cost_keeps_the_results_and_writes_constants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(collecting, "LOOPS", LOOPS[:2])
    out = tmp_path / "constants.toml"
    with running("20", **SMALL) as url:
        asked = ["--collect", url, "--gpu", "h100-sxm", "--backend", "python", "--out", str(out)]
        main(["calibrate", *asked])
    printed = capsys.readouterr()
    assert "2 closed loops of up to 3 clients" in printed.err
    assert "minutes" in printed.err
    assert "held out" in printed.out
    kept = json.loads((tmp_path / "constants.bench.json").read_text())
    assert [result["max_concurrency"] for result in kept] == [1, 3]
    assert tomllib.loads(out.read_text()) == {"h100-sxm": {}}  # its clock runs too fast for any


def test_loops_fit_the_servers_length_and_blocks() -> None:
    card = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    small = loops_for(card | {"max_model_len": 1000, "num_gpu_blocks_override": 500})
    assert max(loop.prompt + loop.output for loop in small) <= 1000
    assert max(loop.clients * (loop.prompt + loop.output) for loop in small) <= 8000
    assert loops_for(card | {"max_model_len": 131_072}) == list(collecting.LOOPS)


def test_counters_are_read_by_either_engines_names() -> None:
    page = 'sglang:num_running_reqs{tp_rank="0"} 2.0\n# HELP x\nvllm:prefix_cache_hits_total 3\n'
    assert counted(page) == {"num_running_reqs": 2.0, "prefix_cache_hits": 3.0}


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("localhost:8000", "must be an address such as http://localhost:8000"),
        ("http://127.0.0.1:9", "--collect http://127.0.0.1:9: /v1/models: Connection refused"),
    ],
)
def test_a_server_that_is_not_there_is_told_in_one_line(
    url: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["calibrate", "--collect", url, "--gpu", "l4"])
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert told in line


LEAST = {"bandwidth": 0.65, "arithmetic": 0.6, "step": 1e-4, "request": 2e-6}
MOST = {"bandwidth": 1.05, "arithmetic": 1.05, "step": 2e-3, "request": 3e-5}


def simulated(options: dict[str, Any], secret: Path, noise: Any) -> list[dict[str, Any]]:
    """Return the loops' results on a simulated server, with ``noise(size)`` on each figure."""
    config = RunConfig.build(**options, cost_model=f"roofline+constants={secret}")
    found = []
    for loop in loops_for(options):
        prompts, outputs = loop.lengths.T
        trace = Trace.from_arrays(np.zeros(len(prompts)), prompts, outputs)
        rows = serve_trace(
            config.model_copy(update={"max_concurrency": loop.clients}), trace
        ).requests
        first, rest = np.exp(noise(2))
        ttfts = first * (rows["first_token_time"] - rows["arrival_time"])
        decodes = rest * (rows["finish_time"] - rows["first_token_time"])
        found.append(
            {"request_rate": "inf", "max_concurrency": loop.clients, "completed": len(trace)}
            | {"input_lens": prompts.tolist(), "output_lens": outputs.tolist()}
            | {"ttfts": ttfts.tolist(), "itls": [[one] for one in decodes.tolist()]}
            | {"mean_ttft_ms": 1e3 * float(ttfts.mean())}
        )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1000, 1001, 1002])
def test_the_loops_decide_every_constant_if_figures_have_a_noise_of_one_percent(
    seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(seed)
    true = {name: float(rng.uniform(LEAST[name], MOST[name])) for name in LEAST}
    secret = tmp_path / "secret.toml"
    secret.write_text(tomli_w.dumps({"h100-sxm": constants("h100-sxm", true)}))
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    results = simulated(options, secret, lambda size: rng.normal(0, 0.01, size))
    measured = runs("simulated", results) or []
    found = {one.name: one for one in calibrate(options, measured[:-1], measured[-1:]).estimates}
    for name, value in true.items():
        one = found[name]
        assert one.low is not None, one
        assert one.high is not None, one
        assert one.low <= value <= one.high, one


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_secretly_changed_constants_are_found_within_their_intervals(
    seed: int, tmp_path: Path
) -> None:
    """The server's clock is slowed fourfold, so that HTTP counts little."""
    rng = np.random.default_rng(seed)
    true = {name: float(rng.uniform(LEAST[name], MOST[name])) for name in LEAST}
    secret = tmp_path / "secret.toml"
    secret.write_text(tomli_w.dumps({"h100-sxm": constants("h100-sxm", true)}))
    with running("0.25", cost_model=f"roofline+constants={secret}") as url:
        server = about(url, {"gpu": "h100-sxm"})
        options = server.options | {"gpu": "h100-sxm"}
        measured = runs(url, collect(server, loops_for(options), speed=0.25)) or []
    found = calibrate(options, measured[:-1], measured[-1:])
    decided = [one for one in found.estimates if not one.reason and one.name in true]
    assert {one.name for one in decided} >= {"bandwidth", "arithmetic"}
    for one in decided:
        assert one.low is not None
        assert one.high is not None
        assert one.low <= true[one.name] <= one.high, one
    (held,) = found.held_out
    assert max(map(abs, held.after.values())) < 10
