"""Speculation for models with states under SGLang: both pools, and the states that are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim

NEXT: dict[str, Any] = {
    "model": "qwen3-next-80b-a3b",
    "gpu": "h200-sxm",
    "engine": "sglang",
    "tensor_parallel_size": 4,
}


def test_each_running_request_has_a_state_per_draft() -> None:
    """Section 17.2 of the rules with D = 12 n-grams and R = 5, which need no weights."""
    plain = kvsim.capacity(**NEXT)
    drafts = kvsim.capacity(**NEXT, speculative_algorithm="NGRAM", speculative_num_draft_tokens=12)
    assert plain.states is not None
    assert drafts.states is not None
    size = plain.states["bytes_per_state"]
    rest = plain.budget_bytes["kv_cache"] + plain.budget_bytes["states"]
    share = rest * 0.9 / 1.9
    slots = (share - size * 13) / (size * (1 + 12 / 5))
    assert drafts.states["slots"] == pytest.approx(slots, abs=1.5)
    running = min(48, drafts.states["slots"] // 5)
    held = size * (drafts.states["slots"] + 1 + (running + 1) * 12)
    assert drafts.budget_bytes["states"] == held
    assert drafts.max_concurrency["256"] <= 48


LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("outputs", "kept"),
    [
        pytest.param(300, 512, marks=LONG),  # the last interval of 256 that a verification crossed
        pytest.param(213, 512, marks=LONG),  # 512 tokens are computed before the last output
        (211, 256),  # drafts beyond the end crossed 512, where no output is
        pytest.param(467, 512, marks=LONG),  # they crossed 768, and 512 is in the other place
        pytest.param(200, 256, marks=LONG),  # none was crossed: the prompt's state is left
    ],
)
def test_the_last_state_before_the_end_is_kept(outputs: int, kept: int) -> None:
    """Every draft is accepted; a second request has the same first 512 tokens."""
    first = [(1, 0, 300)]
    same = min(outputs, 212)  # up to the interval, and not the token after it
    answer = [*first, (2, 0, same), (3, 0, 900 - same)]
    trace = kvsim.Trace.from_arrays(
        [0.0, 60.0],
        [300, 1200],
        [outputs, 2],
        segments=[first, answer],
        output_content_id=[2, 9],
        acceptance_rate=np.array([1.0, 1.0]),
    )
    result = kvsim.simulate(
        trace,
        **NEXT,
        speculative_algorithm="NEXTN",
        backend="python",
        max_total_tokens=3000,
        check_invariants=True,
    )
    assert result.requests["num_cached_tokens"].tolist() == [0, kept]
