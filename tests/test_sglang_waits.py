"""Waits of SGLang's loop, its limit of the queue, aborts: recorded schedules, and small cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from recorded import DATA, name_of, smallest

import kvsim

RECORDED = sorted((DATA / "sglang_cases2" / "ctl").glob("*.json.gz"))
SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "engine": "sglang",
    "max_total_tokens": 4000,
    "disable_overlap_schedule": True,
    "backend": "python",
    "check_invariants": True,
}


@pytest.mark.parametrize("path", smallest(RECORDED))
def test_recorded_waits_and_aborts_come_out_identical(path: Path) -> None:
    assert kvsim.replay(path, check_invariants=path.stat().st_size < 3000) is None


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDED, ids=name_of)
def test_recorded_waits_and_aborts_come_out_identical_compiled(path: Path) -> None:
    assert kvsim.replay(path, backend="compiled") is None


def served(arrivals: list[float], outputs: list[int], **options: Any) -> kvsim.Result:
    trace = kvsim.Trace.from_arrays(arrivals, [100] * len(arrivals), outputs)
    return kvsim.simulate(trace, **SMALL | options)


def test_a_full_queue_turns_new_requests_away() -> None:
    """One runs, two wait: of five at once the others are told that the queue is full."""
    result = served([0.0] * 5, [8] * 5, max_running_requests=1, max_queued_requests=3)
    assert result.summary["rejections"] == {"more than may wait at the server": 2}
    assert result.summary["completed"] == 3


def test_a_full_queue_prefers_the_urgent() -> None:
    trace = kvsim.Trace.from_arrays([0.0] * 4, [100] * 4, [8] * 4, priority=[0, 1, 5, 1])
    given = {"max_queued_requests": 2, "enable_priority_scheduling": True}
    result = kvsim.simulate(trace, **SMALL | given)
    assert result.requests["finish_reason"].tolist() == [1, 0, 0, 1]


def test_decodes_have_their_turn_between_prefills() -> None:
    """Its prefill waits for two of the other's decodes."""
    gaps = []
    for interval in (0, 2):
        result = served([0.0, 1e-4], [20, 20], prefill_decode_interval=interval, record_steps=True)
        steps = result.steps[result.steps["num_scheduled_tokens"] > 0]
        gaps.append(steps["num_scheduled_tokens"].tolist().index(100, 1))
    assert gaps == [1, 3]


def test_a_prefill_waits_for_free_places() -> None:
    """Two of four places are taken: two more prompts come only when three places are free."""
    options = {"max_running_requests": 4, "min_free_slots_delay": 3}
    arrivals, outputs = [0.0, 0.0, 0.01, 0.01], [10, 20, 5, 5]
    first = served(arrivals, outputs, **options).requests
    assert first["first_scheduled_time"][2] >= first["finish_time"][0]
    assert first["first_scheduled_time"][2] < first["finish_time"][1]


@pytest.mark.long
def test_requests_are_received_between_some_decodes() -> None:
    waits = []
    for interval in (1, 8):
        result = served([0.0, 0.02], [60, 5], scheduler_recv_interval=interval, record_steps=True)
        waits.append(result.requests["first_scheduled_time"][1] - 0.02)
    step = result.steps["duration"].max()
    assert waits[0] <= step < waits[1] <= 9 * step
