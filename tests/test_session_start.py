"""Lanes that begin in the middle of their first sessions."""

from typing import Any

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.fleet.fleet import Fleet
from kvsim.fleet.simulate import parts_asked, requests_asked
from kvsim.trace import Trace
from kvsim.trace.waits import roots_of

MODEL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm"}
#: Ten output tokens take a second.
SECONDS = MODEL | {"cost_model": "constant+seconds=0.1", "backend": "python"}


def recorded() -> Trace:
    """Sessions with starts at 0, 10 and 100 s, and at 5 and 25 s."""
    return Trace.from_arrays(
        [0, 5, 10, 25, 100],
        [100] * 5,
        [10] * 5,
        session_id=[0, 1, 0, 1, 0],
        after=[[], [], [0], [1], [2]],
        think_time=[0, 0, 9, 19, 89],
    )


def with_agents() -> Trace:
    """Turns at 0, 20 and 100 s; sub-agents at 2 and 30 s, and, not awaited, at 4 and 40 s."""
    return Trace.from_arrays(
        [0, 2, 4, 20, 30, 40, 100],
        [1, 2, 3, 4, 5, 6, 7],
        [10] * 7,
        session_id=[0, 1, 2, 0, 1, 2, 0],
        after=[[], [[0, "start"]], [[0, "start"]], [0], [1], [2], [3, 4]],
        think_time=[0, 2, 4, 19, 27, 35, 69],
    )


def agents(number: int) -> Trace:
    return workloads.agentic(
        num_requests=number, request_rate=40, seed=2, turns=4.0, sub_agents=60.0, think_time=3.0,
        system=100, first=400, growth=50, output=30, max_prompt=4000,
    )  # fmt: skip


def sent(trace: Trace, **options: Any) -> list[float]:
    return kvsim.simulate(trace, **SECONDS | options).requests["arrival_time"].tolist()


@pytest.mark.parametrize(
    ("start", "lanes", "times"),
    [
        ("0:0", 2, [0, 0, 10, 20, 100]),
        ("0.05:0.05", 2, [5, 19, 95]),
        ("0.5:0.5", 2, [10, 50]),
        ("0.5:0.5", 1, [50, 51, 71]),
        ("1:1", 2, [0, 0]),
    ],
)
def test_what_waits_keeps_the_rest_of_its_pause(start: str, lanes: int, times: list[float]) -> None:
    """At 5 s of the first session its second turn comes in 5 s, and the third 89 s after it."""
    assert sent(recorded(), lanes=lanes, session_start=start) == pytest.approx(times)


def test_sub_agents_go_on_with_their_parent() -> None:
    """At 25 s three conversations wait: until 30, 40 and for the sub-agent that begins at 30 s."""
    trace = with_agents()
    assert sent(trace, lanes=1, session_start="0.25:0.25") == pytest.approx([5, 15, 75])
    assert len(np.unique(roots_of(started(trace, "0.25:0.25")))) == 1


def started(trace: Trace, start: str) -> Trace:
    config = kvsim.Config.build(**SECONDS, lanes=1, session_start=start)
    return requests_asked(config, trace)


@pytest.mark.parametrize(
    ("caps", "times"),
    [
        ({"tree_idle_cap": 3.0}, [3, 3]),
        ({"tree_idle_cap": 20.0}, [10, 20]),
        ({"max_think_time": 30.0}, [10, 30]),
        ({"idle_cap": 4.0}, [4, 9]),
    ],
)
def test_limits_of_pauses_cut_the_rest_of_a_pause(
    caps: dict[str, float], times: list[float]
) -> None:
    """Nothing is in flight until the first pause ends, and after its second of service."""
    assert sent(recorded(), lanes=2, session_start="0.5:0.5", **caps) == pytest.approx(times)


def test_turns_with_planned_times_keep_them() -> None:
    trace = Trace.from_arrays([5, 6, 9, 11], [100] * 4, [10] * 4, session_id=[0, 0, 1, 0])
    assert sent(trace, lanes=1, session_start="0.5:0.5") == pytest.approx([3, 4])
    paused = sent(trace, lanes=1, session_start="0.1:0.1", session_think_time=7.0)
    assert paused == pytest.approx([0.4, 8.4, 9.4])


@pytest.mark.long
def test_starts_are_drawn_by_the_seed() -> None:
    first, same, other = (
        sent(agents(60), lanes=6, session_start="0.25:0.75", seed=seed) for seed in (1, 1, 2)
    )
    assert first == same != other
    assert len(first) < 60


@pytest.mark.long
def test_no_lane_is_empty_before_the_horizon() -> None:
    options = MODEL | {"lanes": 4, "horizon": 60.0, "session_start": "1:1"}
    result = kvsim.simulate(agents(40), **options)
    assert result.summary["num_unsent"] > 0
    assert "a lane may have been empty" not in " ".join(result.provenance["notes"])


@pytest.mark.long
@pytest.mark.parametrize("caps", [{}, {"tree_idle_cap": 1.0}, {"idle_cap": 0.3}])
def test_replicas_run_ahead_of_begun_sessions_with_the_same_results(caps: dict[str, Any]) -> None:
    options = MODEL | {"lanes": 3, "session_start": "0.2:0.8", "data_parallel_size": 2, **caps}
    ahead = kvsim.simulate(agents(60), **options).requests.tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "ahead", lambda _: 0.0)
        plain = kvsim.simulate(agents(60), backend="python", **options).requests.tolist()
    assert str(ahead) == str(plain)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--session-start 0:1", "session_start needs lanes, whose first sessions it begins"),
        ("--lanes 2 --session-start 0.5", "is '0.5': must be LO:HI, from 0:0 to 1:1"),
        ("--lanes 2 --session-start 0.5:0.2", "is '0.5:0.2': must be LO:HI, from 0:0 to 1:1"),
        ("--lanes 2 --session-start 0:1.5", "is '0:1.5': must be LO:HI, from 0:0 to 1:1"),
    ],
)
def test_a_start_that_cannot_be_drawn_is_refused(
    line: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, f"run llama-3-8b --gpu h100-sxm {line}")
    assert reason in said.replace("--session-start", "session_start").replace("--lanes", "lanes")


def growing() -> Trace:
    """A session with prompts of 64, 96 and 160 tokens at 0, 10 and 100 s; one with 80 and 128."""
    first, other = [(1, 0, 64)], [(7, 0, 80)]
    second = [*first, (2, 0, 32)]
    return Trace.from_arrays(
        [0, 5, 10, 25, 100],
        [64, 80, 96, 128, 160],
        [10] * 5,
        segments=[first, other, second, [*other, (8, 0, 48)], [*second, (3, 0, 64)]],
        session_id=[0, 1, 0, 1, 0],
        after=[[], [], [0], [1], [2]],
        think_time=[0, 0, 9, 19, 89],
    )


def cached(**options: Any) -> list[int]:
    """Cached tokens of each request of two lanes."""
    result = kvsim.simulate(growing(), lanes=2, **SECONDS | options)
    return list(result.requests["num_cached_tokens"].tolist())


@pytest.mark.long
def test_primers_leave_their_prompts_in_the_cache() -> None:
    """At 5 s the next prompts are those of 96 and 128 tokens, at 60 s the last ones."""
    assert cached(session_start="0.05:0.05") == [0, 0, 96]
    assert cached(session_start="0.05:0.05", primers=True) == [64, 80, 96]
    assert cached(session_start="0.6:0.6", primers=True) == [80, 96]


def test_requests_after_the_primers_advance_the_sessions() -> None:
    """One more request a lane leaves the last one of each: the second has no more to send."""
    table = kvsim.simulate(
        growing(), lanes=2, session_start="0.05:0.05", primers=True, primer_requests=1, **SECONDS
    )
    assert table.requests["num_cached_tokens"].tolist() == [80, 96]
    assert table.requests["arrival_time"] == pytest.approx([19, 90])
    said = "primers: 3 requests before the run are in no table"
    assert said in table.provenance["notes"]
    assert table.provenance["trace_digest"] == growing().digest


def test_each_conversation_that_goes_on_has_a_primer() -> None:
    """At 25 s both sub-agents and the parent go on; at 45 s only the parent does."""
    for start, tokens in (("0.25:0.25", [4, 2, 3]), ("0.45:0.45", [4])):
        config = kvsim.Config.build(**SECONDS, lanes=1, session_start=start, primers=True)
        first, rest = parts_asked(config, with_agents())
        assert first is not None
        assert sorted(first.num_prompt_tokens.tolist()) == sorted(tokens)
        assert first.num_output_tokens.tolist() == [1] * len(tokens)
        assert len(rest) == {3: 3, 1: 1}[len(tokens)]


@pytest.mark.long
def test_sessions_that_begin_at_their_start_have_no_primers() -> None:
    assert cached(session_start="0:0", primers=True) == cached()


@pytest.mark.long
def test_sessions_that_begin_again_have_primers_only_at_first() -> None:
    options = SECONDS | {"lanes": 2, "session_start": "0.6:0.6", "horizon": 300.0}
    warm = kvsim.simulate(growing(), primers=True, **options).requests["num_cached_tokens"]
    cold = kvsim.simulate(growing(), **options).requests["num_cached_tokens"]
    assert (warm[:2].tolist(), cold[:2].tolist()) == ([80, 96], [0, 0])
    assert warm[2:].tolist() == cold[2:].tolist()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--primers", "needs session_start, which says what lies before the run"),
        (
            "--lanes 1 --session-start 0:1 --primers --save-cache x",
            "conflicts with other warm starts",
        ),
        ("--lanes 1 --session-start 0:1 --primers --record x", "conflicts with a recorded"),
        ("--lanes 1 --session-start 0:1 --primers --data-parallel-size 2", "needs one replica"),
        ("--lanes 1 --session-start 0:1 --primers", "the trace names no contents"),
        ("--primer-requests 3", "needs session_start and primers, which they follow"),
        ("--clients agentx-v1", "needs lanes: the number of sessions at a time"),
        ("--lanes 1 --clients agentx", "must be agentx-v1 or aiperf-mvp"),
    ],
)
def test_primers_that_cannot_be_sent_are_refused(
    line: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, f"run llama-3-8b --gpu h100-sxm {line}")


@pytest.mark.long
def test_benchmarks_have_their_settings_unless_others_are_given() -> None:
    config = kvsim.Config.build(**SECONDS, lanes=2, clients="agentx-v1", idle_cap=7.0)
    assert (config.session_start, config.primers, config.primer_requests) == ("0.25:0.75", True, 10)
    assert (config.horizon, config.tree_idle_cap, config.idle_cap) == (3600.0, 300.0, 7.0)
    other = kvsim.Config.build(**SECONDS, lanes=2, clients="aiperf-mvp")
    assert (other.session_start, other.horizon, other.start_gap_cap) == ("0:1", 1800.0, 10.0)
    notes = kvsim.simulate(growing(), lanes=2, clients="aiperf-mvp", **SECONDS).provenance["notes"]
    assert "clients = aiperf-mvp:" in " ".join(notes)
