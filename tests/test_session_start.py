"""Lanes that begin in the middle of their first sessions."""

from typing import Any

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.fleet.fleet import Fleet
from kvsim.fleet.simulate import requests_asked
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


def test_starts_are_drawn_by_the_seed() -> None:
    first, same, other = (
        sent(agents(60), lanes=6, session_start="0.25:0.75", seed=seed) for seed in (1, 1, 2)
    )
    assert first == same != other
    assert len(first) < 60


def test_no_lane_is_empty_before_the_horizon() -> None:
    options = MODEL | {"lanes": 4, "horizon": 60.0, "session_start": "1:1"}
    result = kvsim.simulate(agents(40), **options)
    assert result.summary["num_unsent"] > 0
    assert "a lane may have been empty" not in " ".join(result.provenance["notes"])


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
