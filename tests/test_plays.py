"""Sessions that lanes play in another order, or again with new contents."""

import math
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.trace import Trace
from kvsim.trace.gaps import with_start_gaps_cut
from kvsim.trace.plays import LEAST_ANSWER, in_plays, sessions_of

#: Ten output tokens take a second.
SECONDS: dict[str, Any] = {
    "model": "llama-3-8b", "gpu": "h100-sxm", "cost_model": "constant+seconds=0.1",
    "backend": "python",
}  # fmt: skip


def pair() -> Trace:
    """A session of two turns with a common start, and a session with a sub-agent."""
    return Trace.from_arrays(
        [3, 4, 5, 6],
        [64, 96, 64, 32],
        [10] * 4,
        segments=[
            [(7, 0, 40), (1, 0, 24)],
            [(7, 0, 40), (1, 0, 24), (5, 0, 10), (2, 0, 22)],
            [(7, 0, 40), (3, 0, 24)],
            [(4, 0, 32)],
        ],
        output_content_id=[5, 6, 8, 9],
        session_id=[0, 0, 1, 2],
        after=[[], [0], [], [[2, "start"]]],
        think_time=[0, 4, 0, 2],
    )


def test_a_trace_that_suffices_is_left_as_it_is() -> None:
    trace = pair()
    assert in_plays(trace, 1, math.inf, None) is trace
    assert in_plays(trace, 2, 1.0, None) is trace


def test_sessions_begin_again_until_the_horizon() -> None:
    trace = in_plays(pair(), 1, 8.0, None)  # at least 4.01, 2.01, 4.01 s
    assert sessions_of(trace) == [[0, 1], [2, 3], [4, 5]]
    assert trace.after.tolist() == [0, -3, 4]
    assert trace.session_id.tolist() == [0, 0, 1, 2, 3, 3]
    assert trace.think_time.tolist() == [0, 4, 0, 2, 0, 4]
    gaps = np.diff(trace.arrival_time)
    assert (gaps >= 0).all()
    assert gaps[[0, 2, 4]].tolist() == [1, 1, 1]


def test_a_session_played_again_has_new_contents() -> None:
    trace = in_plays(pair(), 1, 8.0, None)
    first, again = ([trace.segments_of(row) for row in rows] for rows in (range(4), range(4, 6)))
    assert first == [pair().segments_of(row) for row in range(4)]
    old = {part.content_id for parts in first for part in parts} | {5, 6, 8, 9}
    assert old.isdisjoint(part.content_id for parts in again for part in parts)
    assert again[1][2].content_id == trace.output_content_id[4]  # the turn repeats the answer
    assert again[0] == again[1][:2]


@pytest.mark.parametrize("shared", [40, 50])
def test_the_first_tokens_may_be_shared(shared: int) -> None:
    trace = in_plays(pair(), 1, 8.0, None, shared)
    parts = trace.segments_of(5)
    assert sum(part.num_tokens for part in parts) == 96
    assert parts[0] == (7, 0, 40)
    new = parts[-1].content_id
    assert new > 9
    if shared == 50:
        assert parts[1] == (1, 0, 10)
        assert parts[2][1:] == (10, 14)
        assert parts[2].content_id > 9


def test_answers_are_not_shared() -> None:
    trace = in_plays(pair(), 1, 8.0, None, 96)
    parts = trace.segments_of(5)
    assert [part.content_id for part in parts[:2]] == [7, 1]
    assert parts[2].content_id == trace.output_content_id[4] > 9


def test_the_seed_decides_the_order_of_each_pass() -> None:
    trace = workloads.multi_turn(num_requests=60, request_rate=4, seed=1, turns=3)
    number = len(sessions_of(trace))
    shuffled, same, other = (in_plays(trace, 2, math.inf, seed) for seed in (1, 1, 2))
    assert shuffled.digest == same.digest != other.digest
    assert len(sessions_of(shuffled)) == number
    for name in ("num_prompt_tokens", "num_output_tokens", "session_id"):
        assert sorted(getattr(shuffled, name)) == sorted(getattr(trace, name))
    assert (shuffled.num_prompt_tokens != trace.num_prompt_tokens).any()


def test_no_lane_is_empty_before_the_horizon() -> None:
    result = kvsim.simulate(pair(), lanes=2, horizon=60.0, **SECONDS)
    rows, played = result.requests, in_plays(pair(), 2, 60.0, None)
    sessions = [rows[one] for one in sessions_of(played)]
    begin = np.array([one["arrival_time"][0] for one in sessions])
    end = np.array([one["finish_time"].max() for one in sessions])  # NaN: not yet
    sent = np.array([one["finish_reason"][0] != 3 for one in sessions])
    assert 16 <= sent.sum() < len(sessions)
    for time in np.arange(3.55, 63.0, 0.5):
        assert (sent & (begin <= time) & ~(end + 1e-6 < time)).sum() == 2
    assert not any("lanes" in note for note in result.provenance["notes"])


@pytest.mark.long
def test_nothing_hits_across_plays_but_what_is_shared() -> None:
    alone = Trace.from_arrays([0], [640], [10], segments=[[(1, 0, 640)]])
    rates = [
        kvsim.simulate(alone, lanes=1, horizon=5.5, shared_prefix_tokens=k, **SECONDS)
        for k in (0, 320)
    ]
    cached = [result.requests["num_cached_tokens"] for result in rates]
    assert cached[0][:6].tolist() == [0] * 6
    assert cached[1][:6].tolist() == [0] + [320] * 5


def test_lanes_that_may_have_been_empty_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.trace.plays.MOST_REQUESTS", 8)
    result = kvsim.simulate(pair(), lanes=2, horizon=600.0, **SECONDS)
    assert len(result.requests) == 8
    assert "a lane may have been empty" in result.provenance["notes"][-1]


@pytest.mark.long
def test_long_pauses_are_cut_and_counted() -> None:
    result = kvsim.simulate(pair(), max_think_time=3.0, **SECONDS)
    rows = result.requests
    assert rows["arrival_time"][1] == pytest.approx(rows["finish_time"][0] + 3)
    said = "max_think_time = 3: 1 of 2 pauses are cut, 83.3 % of their time is left"
    assert result.provenance["notes"][-1].startswith(said)


def test_options_without_effect_are_noted() -> None:
    trace = Trace.from_arrays([0], [10], [10])
    options = SECONDS | {"shuffle_sessions": True, "shared_prefix_tokens": 5, "max_think_time": 1.0}
    said = " ".join(kvsim.simulate(trace, **options).provenance["notes"])
    for name in ("shuffle_sessions", "shared_prefix_tokens", "max_think_time"):
        assert name in said


def test_a_session_takes_its_pauses_at_least() -> None:
    """On one lane six passes of 4.01 and 2.01 s, and a seventh session, take 40.1 s."""
    assert len(sessions_of(in_plays(pair(), 1, 40.0, None))) == 13
    assert LEAST_ANSWER < 0.01


def test_capped_pauses_need_more_sessions() -> None:
    capped = in_plays(pair(), 1, 40.0, None, longest=1.0)
    assert len(sessions_of(capped)) == 40


def test_first_sessions_that_are_begun_may_take_no_time() -> None:
    """Sessions of 4 and 2 s in turn: within 13 s a lane begins five, or six if it is in one."""
    for is_begun, number in ((False, 5), (True, 6)):
        plays = in_plays(pair(), 1, 13.0, None, is_begun=is_begun)
        assert len(sessions_of(plays)) == number


def test_a_warm_start_does_not_play_sessions_again(tmp_path: Any) -> None:
    with pytest.raises(ValueError, match="conflicts with lanes and a horizon"):
        kvsim.simulate(pair(), lanes=1, horizon=9, save_cache=tmp_path / "cache", **SECONDS)


def gapped() -> Trace:
    """Starts at 0, 5 and 100 s with a sub-agent at 40 s, and another session at 1 and 30 s."""
    return Trace.from_arrays(
        [0, 1, 5, 30, 40, 100],
        [10, 11, 12, 13, 14, 15],
        [10] * 6,
        session_id=[0, 1, 0, 1, 2, 0],
        after=[[], [], [0], [1], [[2, "start"]], [2, 4]],
        think_time=[0, 0, 4, 28, 35, 59],
    )


def test_gaps_between_starts_are_cut_and_pauses_shrink_with_them() -> None:
    """The sub-agent comes 10 s after its parent, which resumes 10 s later: 50 s fewer than 59."""
    trace = with_start_gaps_cut(gapped(), 10.0)
    assert trace.num_prompt_tokens.tolist() == [10, 11, 12, 13, 14, 15]
    assert trace.arrival_time.tolist() == [0, 1, 5, 11, 15, 25]
    assert trace.think_time.tolist() == [0, 0, 4, 9, 10, 9]
    assert trace.after.tolist() == gapped().after.tolist()


def test_a_session_without_its_gaps_overtakes_another() -> None:
    waits: dict[str, Any] = {"after": [[], [], [0], [[2, "start"]]], "think_time": [0, 0, 99, 30]}
    trace = Trace.from_arrays(
        [0, 50, 99, 129], [1, 2, 3, 4], [1] * 4, session_id=[0, 1, 0, 0], **waits
    )
    cut = with_start_gaps_cut(trace, 9.0)
    assert cut.num_prompt_tokens.tolist() == [1, 3, 4, 2]
    assert cut.arrival_time.tolist() == [0, 9, 18, 50]
    assert cut.after.tolist() == [0, -2]
    assert cut.after_offsets.tolist() == [0, 0, 1, 2, 2]


@pytest.mark.long
def test_what_a_limit_of_gaps_leaves_is_noted() -> None:
    result = kvsim.simulate(gapped(), start_gap_cap=10, **SECONDS)
    said = "start_gap_cap = 10: 3 of 4 gaps between starts are cut, 27.1 % of their time is left"
    assert said in result.provenance["notes"]
    assert result.provenance["trace_digest"] == gapped().digest
    alone = kvsim.simulate(gapped()[:2], start_gap_cap=10, **SECONDS)
    assert "start_gap_cap = 10.0 has no effect" in " ".join(alone.provenance["notes"])
