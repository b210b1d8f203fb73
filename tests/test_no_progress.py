"""Requests of a fleet that wait for each other: all end, and none is lost without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from random_runs import drawn

import kvsim
from kvsim.cli import main
from kvsim.engine.watchdog import MOST_LOOKS, Watchdog
from kvsim.errors import UnfinishedError
from kvsim.fleet.no_progress import Standstill
from kvsim.results.check import refuse_unfinished
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

PUSH: dict[str, Any] = {
    "gpu": "h200-sxm",
    "block_size": 4,
    "kv_transfer_protocol": "push",
}
#: No slots to look ahead for either of two requests whose KV is there.
LOST = Trace.from_arrays([0.0, 0.0], [17, 36], [3, 3])
LOST_OPTIONS = PUSH | {
    "model": "llama-3-8b",
    "num_gpu_blocks_override": 15,
    "num_lookahead_tokens": 9,
    "num_prefill_workers": 1,
    "num_decode_workers": 1,
}
HANG = Trace.from_arrays(
    [0.0, 0.003, 0.003, 1.003, 1.003, 2.033, 2.036],
    [17, 34, 36, 28, 21, 20, 17],
    [3, 3, 2, 3, 2, 3, 3],
)
#: The same six requests met 3,615 times.
VTC = Trace.from_arrays(
    [0.0] * 15,
    [31, 35, 46, 28, 48, 67, 61, 57, 61, 33, 53, 47, 81, 21, 50],
    [1, 20, 8, 25, 21, 9, 3, 13, 18, 16, 3, 12, 12, 19, 7],
    tenant=[8, -1, 8, 3, -1, 8, 3, 8, -1, -1, 8, -1, 8, -1, -1],
)
VTC_OPTIONS = PUSH | {
    "model": "gemma-3-1b",
    "num_gpu_blocks_override": 193,
    "max_model_len": 64,
    "max_num_seqs": 3,
    "scheduling_policy": "vtc",
    "watermark": 0.7,
    "num_prefill_workers": 2,
    "num_decode_workers": 1,
    "cost_model": "constant+seconds=1",
}
#: One request preempts itself for ever beside prompts that wait to be read.
VAIN = drawn("apart", 199)
CASES: dict[str, tuple[Trace, dict[str, Any], int]] = {
    "lost": (LOST, LOST_OPTIONS | {"max_model_len": 64}, 2),
    "pulled": (LOST, LOST_OPTIONS | {"max_model_len": 64, "kv_transfer_protocol": "pull"}, 2),
    "endless": (HANG, LOST_OPTIONS | {"num_decode_workers": 2}, 7),
    "vtc": (VTC, VTC_OPTIONS, 13),  # two prompts are too long
    "in vain": (VAIN.trace, VAIN.options, 9),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_all_requests_end_and_both_engines_agree(name: str) -> None:
    trace, options, number = CASES[name]
    python, compiled = (
        kvsim.simulate(trace, **options, backend=backend, check_invariants=backend == "python")
        for backend in ("python", "compiled")
    )
    assert equal_tables(python.requests, compiled.requests)
    assert python.summary == compiled.summary
    check_result(python)
    assert python.summary["completed"] == number
    assert python.summary["completed"] + python.summary["num_rejected"] == len(trace)
    taken = python.summary["kv_transfers"]["num_taken_back"]
    assert (taken > 0) == (name != "pulled")
    assert ("restarted" in " ".join(python.provenance["notes"])) == (taken > 0)


def test_a_run_that_loses_requests_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Standstill, "unblock", lambda self: False)
    options = LOST_OPTIONS | {"max_model_len": 64, "backend": "python"}
    with pytest.raises(UnfinishedError, match="2 of 2 requests have not: 0, 1; this is a bug"):
        kvsim.simulate(LOST, **options)
    LOST.save(tmp_path / "lost.csv")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with pytest.raises(SystemExit) as ended:
        main(["run", "--trace", str(tmp_path / "lost.csv"), *flags])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("kvsim: the run ended, and 2 of 2 requests have not: 0, 1;")


@pytest.mark.long
def test_requests_that_are_in_flight_at_a_horizon_are_none_that_are_lost() -> None:
    options = LOST_OPTIONS | {"max_model_len": 64, "backend": "python"}
    result = kvsim.simulate(LOST, **options, horizon=0.01)
    refuse_unfinished(result)
    assert result.summary["completed"] < 2


class Waits:
    """A replica's state that does not change."""

    num_requests, num_generated_tokens, num_outstanding, clock = 1, 3, 1, 2.5

    class trace:  # noqa: N801
        next = 1

    class request:  # noqa: N801
        request_id, status, max_computed_tokens, num_computed_tokens = 17, 1, 8, 4

    requests = (request,)


def test_a_replica_that_gets_no_further_ends_the_run() -> None:
    dog, state = Watchdog(), Waits()
    for _ in range(MOST_LOOKS):
        dog._look(state)
    state.num_generated_tokens = 4
    for _ in range(MOST_LOOKS):
        dog._look(state)
    with pytest.raises(
        UnfinishedError, match=r"again and again at 2\.5 s: requests 17 make no progress"
    ):
        dog._look(state)
