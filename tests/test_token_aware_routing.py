"""The slowest draw of connections, beside the published run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from experiments.validation.llmd_routers import token_aware as token_aware_routing
from experiments.validation.llmd_routers.inference_perf import conversations
from experiments.validation.llmd_routers.token_aware import CODE, SLOW, slow_row
from kvsim.results.tables import REQUESTS

if TYPE_CHECKING:
    from numpy.typing import NDArray


def run(seconds: float, pods: list[int]) -> NDArray[Any]:
    """Requests of 1,000 tokens, sent one by one, each begun after a tenth of its time."""
    rows = np.zeros(len(pods), REQUESTS)
    rows["replica"], rows["num_prompt_tokens"] = pods, 1000
    rows["arrival_time"] = sent = np.arange(5.0, 5.0 + len(pods))
    rows["first_scheduled_time"] = sent + 0.1 * seconds
    rows["first_token_time"], rows["finish_time"] = sent + 0.5 * seconds, sent + seconds
    return rows


def test_the_slowest_draw_is_told_in_what_was_published(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, ...]] = []

    def rate(*what: Any) -> float:
        asked.append(what)
        return 1000.0 * (20 + len(asked))

    monkeypatch.setattr(token_aware_routing, "code_rate", rate)
    row = slow_row([run(10.0, [0, 1, 2]), run(40.0, [3, 3, 4]), run(20.0, [5, 6, 7])])
    # 3,000 tokens in 42 s; 108 s of running, and the average goes on for 17 s.
    expected = (0.1, 2.0, *[20.0] * 3, *[40.0] * 3, 4.0, 108 / 59)
    assert row.ours == ", ".join(f"{k:.1f}" for k in expected)
    assert row.theirs == ", ".join(f"{k:.1f}" for k in SLOW)
    assert row.holds is None
    assert "of 3: 2 of its 3 requests go to one pod" in row.note
    assert "10 draws give 21 to 30 thousand" in row.note
    assert asked == [(30, "random", seed) for seed in range(10)]


def test_texts_have_more_tokens_than_were_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    load = conversations(CODE, 6)
    first, own, question = load.trace.segments_of(0)
    monkeypatch.setattr("experiments.validation.llmd_routers.inference_perf.RECOUNT", 1.0)
    drawn = conversations(CODE, 6)
    assert first.num_tokens == 3150
    for part, was in zip((own, question), drawn.trace.segments_of(0)[1:], strict=True):
        assert part.num_tokens == round(1.05 * was.num_tokens)
    assert (load.trace.num_output_tokens == drawn.trace.num_output_tokens).all()
