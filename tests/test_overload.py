"""Requests that vLLM's front end turns away: requests in flight, tokens of prompts in line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim

FULL = "more than may wait at the server"


def served(arrivals: list[float], **options: Any) -> kvsim.Result:
    trace = kvsim.Trace.from_arrays(arrivals, [100] * len(arrivals), [8] * len(arrivals))
    given: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm", "backend": "python"}
    return kvsim.simulate(trace, **given | {"check_invariants": True} | options)


@pytest.mark.long
def test_the_front_end_admits_so_many_in_flight() -> None:
    result = served([0.0] * 5, max_num_queued_reqs=3)
    assert result.summary["rejections"] == {FULL: 2}
    assert result.requests["finish_reason"].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.long
def test_the_last_admitted_prompt_may_exceed_the_tokens() -> None:
    """100 tokens are below 150, 200 are not; tokens count until the first one of the output."""
    result = served([0.0, 0.0, 0.0, 0.03], max_num_queued_tokens=150)
    assert result.requests["finish_reason"].tolist() == [0, 0, 1, 0]


@pytest.mark.long
@pytest.mark.parametrize(("before", "reasons"), [(1e-6, [0, 1, 1]), (-1e-6, [0, 0, 1])])
def test_a_place_is_free_when_the_step_has_ended(before: float, reasons: list[int]) -> None:
    end = float(served([0.0]).requests["finish_time"][0])
    result = served([0.0, end - before, end - before], max_num_queued_reqs=1)
    assert result.requests["finish_reason"].tolist() == reasons


def test_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="num_samples: max_num_queued_reqs"):
        served([0.0], max_num_queued_reqs=5, num_samples=2)


def test_ranks_of_one_front_end_are_refused() -> None:
    with pytest.raises(ValueError, match="max_num_queued_reqs: limits all data-parallel"):
        served([0.0], max_num_queued_reqs=5, data_parallel_size=2)


@pytest.mark.long
@pytest.mark.parametrize("limit", [{"max_num_queued_reqs": 4}, {"max_num_queued_tokens": 250}])
def test_both_backends_turn_the_same_away(limit: dict[str, int]) -> None:
    arrivals = [0.004 * k for k in range(60)]
    rows = [served(arrivals, backend=one, **limit) for one in ("python", "compiled")]
    assert 0 < rows[0].summary["rejections"][FULL] < 60
    for name in ("finish_reason", "first_token_time", "finish_time"):
        np.testing.assert_array_equal(rows[0].requests[name], rows[1].requests[name])
