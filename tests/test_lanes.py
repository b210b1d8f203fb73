"""Lanes of clients: each serves one session, with its sub-agents, after the other."""

from typing import Any

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.fleet.fleet import Fleet
from kvsim.trace import Trace
from kvsim.trace.waits import roots_of

MODEL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm"}
#: Ten output tokens take a second.
SECONDS = MODEL | {"cost_model": "constant+seconds=0.1", "backend": "python"}


def rows(trace: Trace, **options: Any) -> str:
    return str(kvsim.simulate(trace, **options).requests.tolist())


def two_and_one() -> Trace:
    """Sessions of three and two turns, and one request."""
    return Trace.from_arrays(
        [0, 1, 2, 3, 4, 5],
        [100] * 6,
        [10] * 6,
        session_id=[0, 1, 0, 0, 1, 2],
        after=[[], [], [0], [2], [1], []],
        think_time=[0, 0, 1.5, 2.5, 4, 0],
    )


def agents(number: int) -> Trace:
    return workloads.agentic(
        num_requests=number, request_rate=40, seed=2, turns=4.0, sub_agents=60.0, think_time=3.0,
        system=100, first=400, growth=50, output=30, max_prompt=4000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("backend", "replicas"),
    [pytest.param("python", 1, marks=pytest.mark.long), ("compiled", 1), ("compiled", 3)],
)
def test_lanes_of_single_requests_limit_the_requests_in_flight(backend: str, replicas: int) -> None:
    trace = workloads.sharegpt(num_requests=60, request_rate=float("inf"), seed=1)
    options = MODEL | {"backend": backend, "data_parallel_size": replicas}
    assert rows(trace, lanes=5, **options) == rows(trace, max_concurrency=5, **options)


@pytest.mark.long
def test_on_one_lane_send_times_are_sums_of_pauses_and_answers() -> None:
    table = kvsim.simulate(two_and_one(), lanes=1, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 7, 2.5, 6, 12, 13])


@pytest.mark.long
def test_the_second_lane_takes_the_next_session() -> None:
    table = kvsim.simulate(two_and_one(), lanes=2, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 2.5, 6, 5, 6])


@pytest.mark.long
def test_planned_times_count_from_the_begin_of_the_session() -> None:
    trace = Trace.from_arrays([5, 6, 9, 11], [100] * 4, [10] * 4, session_id=[0, 1, 0, 1])
    one = kvsim.simulate(trace, lanes=1, **SECONDS).requests
    assert one["arrival_time"] == pytest.approx([5, 10, 9, 15])
    paused = kvsim.simulate(trace, lanes=1, session_think_time=4.5, **SECONDS).requests
    assert paused["arrival_time"] == pytest.approx([5, 11.5, 10.5, 17])


def test_a_lane_serves_a_session_until_its_last_sub_agent_has_ended() -> None:
    trace = Trace.from_arrays(
        [0, 0, 1], [100] * 3, [10, 50, 10], session_id=[0, 1, 2], after=[[], [[0, "start"]], []]
    )
    table = kvsim.simulate(trace, lanes=1, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 5])


def test_a_rejected_request_ends_its_session() -> None:
    trace = Trace.from_arrays([0, 1, 2], [100, 9000, 100], [10] * 3, session_id=[0, 1, 2])
    table = kvsim.simulate(trace, lanes=1, max_model_len=200, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 1, 1])


@pytest.mark.long
def test_all_samples_belong_to_their_request() -> None:
    trace = Trace.from_arrays([0, 0], [100] * 2, [10] * 2, num_samples=[3, 1])
    table = kvsim.simulate(trace, lanes=1, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 1])


def test_no_lane_is_empty_while_sessions_are_left() -> None:
    trace = agents(150)
    table = kvsim.simulate(trace, lanes=4, data_parallel_size=2, **MODEL).requests
    _, tree = np.unique(roots_of(trace), return_inverse=True)
    begin, end = np.full(tree.max() + 1, np.inf), np.zeros(tree.max() + 1)
    np.minimum.at(begin, tree, table["arrival_time"])
    np.maximum.at(end, tree, table["finish_time"])
    for time in begin[begin > 0]:
        assert ((begin <= time) & (end > time)).sum() == 4
    assert (np.diff(begin) >= 0).all()


@pytest.mark.long
@pytest.mark.parametrize("router", ["session", "llm-d"])
def test_replicas_run_ahead_of_lanes_with_the_same_results(router: str) -> None:
    options = MODEL | {"lanes": 3, "data_parallel_size": 3, "router": router}
    ahead = rows(agents(100), backend="auto" if router == "session" else "python", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "ahead", lambda _: 0.0)
        assert ahead == rows(agents(100), backend="python", **options)


def test_the_server_sets_the_rate_of_lanes() -> None:
    load = kvsim.simulate(two_and_one(), lanes=2, **SECONDS).summary["load"]
    assert (load["offered_request_rate"], load["saturated"]) == (None, None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--lanes 0", "lanes is '0': must be a whole number, at least 1"),
        ("--lanes 2 --max-concurrency 3", "lanes conflicts with max_concurrency: give one of"),
        ("--lanes 2 --request-rate 3", "lanes conflicts with request_rate: lanes begin the"),
    ],
)
def test_options_that_conflict_with_lanes_are_refused(
    line: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reason in refused(capsys, f"run llama-3-8b --gpu h100-sxm {line}").replace("--", "")


def test_a_search_refuses_lanes() -> None:
    with pytest.raises(ValueError, match="lanes: a closed loop sets its own rate"):
        kvsim.search(two_and_one(), slo="p99_ttft_ms<=1000", lanes=2, **MODEL)


def chains(*think_times: list[float]) -> Trace:
    """Sessions that begin together, with pauses between their turns."""
    before, after, pauses, session = [-1] * len(think_times), [], [], []
    for turn in range(1 + max(map(len, think_times))):
        for one, times in enumerate(think_times):
            if turn > len(times):
                continue
            after.append([before[one]] if turn else [])
            pauses.append(times[turn - 1] if turn else 0.0)
            session.append(one)
            before[one] = len(after) - 1
    number = len(after)
    arrays = [0] * number, [100] * number, [10] * number
    return Trace.from_arrays(*arrays, session_id=session, after=after, think_time=pauses)


def test_pauses_of_an_idle_session_end_after_the_cap() -> None:
    table = kvsim.simulate(chains([50, 3], [4]), tree_idle_cap=5.0, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 6, 5, 10])


@pytest.mark.long
def test_all_pauses_shrink_equally_while_nothing_is_in_flight() -> None:
    """The pauses of 50 and 70 s shrink by 45 s; 20 - 1 s of the second remain after an answer."""
    table = kvsim.simulate(chains([50], [70]), idle_cap=5.0, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 6, 12])
    table = kvsim.simulate(chains([50], [53]), idle_cap=5.0, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 6, 9])
    table = kvsim.simulate(chains([50, 30], [53]), idle_cap=5.0, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 6, 9, 15])


@pytest.mark.long
def test_a_running_sub_agent_keeps_its_session_from_being_idle() -> None:
    trace = Trace.from_arrays(
        [0, 0, 1],
        [100] * 3,
        [10, 200, 10],
        session_id=[0, 1, 0],
        after=[[], [[0, "start"]], [0]],
        think_time=[0, 0, 60],
    )
    table = kvsim.simulate(trace, tree_idle_cap=5.0, **SECONDS).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 25])


@pytest.mark.long
@pytest.mark.parametrize("caps", [{"tree_idle_cap": 1.0}, {"idle_cap": 0.3}])
def test_replicas_run_ahead_of_capped_pauses_with_the_same_results(caps: dict[str, float]) -> None:
    options = MODEL | caps | {"data_parallel_size": 3, "router": "session"}
    ahead = rows(agents(100), **options)
    assert ahead != rows(agents(100), **options | dict.fromkeys(caps))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "ahead", lambda _: 0.0)
        assert ahead == rows(agents(100), backend="python", **options)


def test_a_replica_does_not_run_beyond_a_pause_that_ends_early() -> None:
    """The second turn comes to a busy replica, which has 40 s of work and no news to wait for."""
    waits: dict[str, Any] = {"after": [[], [], [1]], "think_time": [0, 0, 50]}
    trace = Trace.from_arrays([0] * 3, [100] * 3, [400, 10, 10], session_id=[0, 1, 1], **waits)
    options = SECONDS | {"tree_idle_cap": 5.0, "data_parallel_size": 2}
    table = kvsim.simulate(trace, router="round-robin", **options).requests
    assert table["arrival_time"] == pytest.approx([0, 0, 6])
    assert table["first_token_time"][2] < 7


def test_caps_without_pauses_are_noted() -> None:
    trace = Trace.from_arrays([0], [100], [10])
    said = " ".join(
        kvsim.simulate(trace, tree_idle_cap=1.0, idle_cap=1.0, **SECONDS).provenance["notes"]
    )
    assert "tree_idle_cap" in said
    assert " idle_cap" in said
