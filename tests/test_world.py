"""The SimPy world: arrivals, routing, closed loops, exact times, harmless look-ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from strategies import configs, examples, traces

import kvsim
import workloads
from kvsim.cli import main
from kvsim.engine.incoming import IncomingRequest
from kvsim.engine.replica import Replica
from kvsim.engine.replica_set import ReplicaSet
from kvsim.fleet.clients import Clients
from kvsim.fleet.fleet import Fleet
from kvsim.fleet.routing.router import Router
from kvsim.fleet.routing.view import ReplicaView
from kvsim.fleet.world import Phase, World
from kvsim.testing import equal_tables
from kvsim.trace import Trace

TABLES = ("requests", "memory", "steps")


def same(a: kvsim.Result, b: kvsim.Result) -> bool:
    return all(equal_tables(getattr(a, t), getattr(b, t)) for t in TABLES)


def test_events_stand_at_exact_times_and_in_the_order_of_their_phase() -> None:
    world, log = World(initial_time=0.1), []

    def process(name: str, time: float, phase: Phase) -> Any:
        yield world.at(time, phase)
        log.append((name, world.now))

    time = 0.1 + 0.7  # 0.1 + (0.8 - 0.1) is another number
    world.process(process("schedule", time, Phase.STEP_IS_SCHEDULED))
    world.process(process("send", time, Phase.REQUEST_IS_SENT))
    world.process(process("end", time, Phase.STEP_ENDS))
    world.run()
    assert log == [("end", time), ("send", time), ("schedule", time)]


@pytest.mark.slow
@examples(80)
@given(traces(), configs())
def test_look_ahead_changes_nothing(trace: Trace, options: dict[str, Any]) -> None:
    """A world in which no replica ever runs past anybody's next event gives the same tables."""

    def no_look_ahead(self: ReplicaSet, *args: Any) -> tuple[int, float]:
        place, horizon = next_turn(self, *args)
        return place, min(horizon, math.nextafter(self.times[place], math.inf))

    next_turn = ReplicaSet._next_turn

    fast = kvsim.simulate(trace, record_steps=True, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "entry_address", 0)
        patch.setattr(ReplicaSet, "_next_turn", no_look_ahead)
        slow = kvsim.simulate(trace, record_steps=True, **options)
    assert same(fast, slow)


@pytest.mark.slow
@examples(40)
@given(traces(), configs())
def test_dealing_out_beforehand_equals_sending_one_by_one(
    trace: Trace, options: dict[str, Any]
) -> None:
    options = {**options, "router": "round-robin", "max_concurrency": None}
    dealt = kvsim.simulate(trace, record_steps=True, **options)
    sent = kvsim.simulate(trace, record_steps=True, **{**options, "max_concurrency": 10**6})
    assert same(dealt, sent)


@pytest.mark.long
@pytest.mark.parametrize("router", ["session", "llm-d"])
@pytest.mark.parametrize("pause", [0.01, 3.0])
def test_replicas_run_ahead_while_no_client_can_answer(router: str, pause: float) -> None:
    """Until the least pause after an end, which with scrapes must be longer than their interval."""
    trace = workloads.agentic(
        num_requests=40, request_rate=40, turns=4.0, sub_agents=60.0, think_time=pause,
        system=100, first=400, growth=50, output=30, max_prompt=4000,
    )  # fmt: skip
    options: dict[str, Any] = {"model": "llama-3-8b", "gpu": "h100-sxm", "data_parallel_size": 3}
    options["backend"] = "python" if router == "llm-d" else "auto"
    ahead = kvsim.simulate(trace, router=router, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fleet, "ahead", lambda _: 0.0)
        assert same(ahead, kvsim.simulate(trace, router=router, **options))


def test_the_least_pause_is_that_of_requests_in_flight() -> None:
    trace = Trace.from_arrays(
        [0, 1, 2, 3], [9] * 4, [1] * 4, after=[[], [], [0, 1], [1]], think_time=[0, 0, 5.0, 2.0]
    )
    clients = Clients(World(initial_time=0.0), trace, lambda row: None)
    assert clients.least_pause == math.inf
    for row, pause in ((0, 5.0), (1, 2.0)):
        clients._queue(row)
        assert clients.least_pause == pause
    clients.ended([1], 2.0)
    assert clients.least_pause == 5.0


@pytest.mark.parametrize(("pause", "ahead"), [(5.0, 3.0), (1.0, 0.0)])
def test_a_replica_stops_for_the_scrape_before_what_follows_a_pause(
    pause: float, ahead: float
) -> None:
    pool = SimpleNamespace(gateways=SimpleNamespace(scrape_interval=2.0))
    fleet: Any = SimpleNamespace(
        _only_waits=True, pools=[pool], clients=SimpleNamespace(least_pause=pause)
    )
    assert Fleet.ahead(fleet) == ahead


def serve(trace: Trace, **options: Any) -> kvsim.Result:
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "record_steps": True} | options
    return kvsim.simulate(trace, cost_model="constant+seconds=1", **options)


def test_an_arrival_at_the_very_end_of_a_step_joins_the_next_one() -> None:
    trace = Trace.from_arrays([0.0, 1.0, 1.0000001], [8, 8, 8], [3, 1, 1])
    result = serve(trace, async_scheduling=False)
    assert result.requests["first_scheduled_time"].tolist() == [0.0, 1.0, 2.0]
    assert result.requests["finish_time"].tolist() == [3.0, 2.0, 3.0]


def test_asynchronous_scheduling_sees_arrivals_one_step_earlier_than_it_starts() -> None:
    """Batch k is scheduled at end(k - 2) and starts at end(k - 1)."""
    trace = Trace.from_arrays([0.0, 0.5], [8, 8], [5, 1])
    result = serve(trace, async_scheduling=True)
    assert result.requests["first_scheduled_time"].tolist() == [0.0, 1.0]
    assert result.requests["first_token_time"].tolist() == [1.0, 3.0]
    assert result.requests["finish_time"].tolist() == [5.0, 3.0]


def test_round_robin_deals_in_turn_and_least_outstanding_to_the_idle() -> None:
    trace = Trace.from_arrays([0.0, 0.1, 0.2, 1.5], [8] * 4, [10, 1, 10, 1])
    turn = serve(trace, data_parallel_size=2)
    assert turn.requests["replica"].tolist() == [0, 1, 0, 1]
    least = serve(trace, data_parallel_size=2, router="least-outstanding", async_scheduling=False)
    # At 0.2 both have one, the first is taken; at 1.5 the second one's has ended.
    assert least.requests["replica"].tolist() == [0, 1, 0, 1]
    busy = serve(
        trace[:3], data_parallel_size=3, router="least-outstanding", async_scheduling=False
    )
    assert busy.requests["replica"].tolist() == [0, 1, 2]


class LongestPrefix(Router):
    """A user's own router: the longest cached prefix, else in turn."""

    needs_prefix_cache = True

    def __init__(self, *, at_least: int = 1) -> None:
        self.at_least = at_least

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        hits = [replica.num_cached_tokens(request) for replica in replicas]
        keys = request.prefix_keys(16)
        assert len(keys) == request.num_prompt_tokens // 16
        LOG.append((request.request_id, request.arrival_time, request.session_id, *hits, keys[0]))
        if max(hits) < self.at_least:
            return request.request_id % len(replicas)
        return hits.index(max(hits))


LOG: list[tuple[Any, ...]] = []


def test_a_router_sees_the_request_and_the_prefix_caches() -> None:
    shared = [(5, 0, 64)]
    trace = Trace.from_arrays(
        [0.0, 1.5, 9.0],
        [65, 65, 65],
        [2, 2, 2],
        segments=[[*shared, (6, 0, 1)], [(7, 0, 65)], [*shared, (8, 0, 1)]],
        session_id=[3, 4, 3],
        priority=[0, 1, 0],
    )
    router = f"{__name__}:LongestPrefix"
    for backend in ("python", "compiled"):
        LOG.clear()
        options = {"data_parallel_size": 2, "backend": backend}
        result = serve(trace, router=f"{router}+at-least=64", **options)
        assert result.requests["replica"].tolist() == [0, 1, 0]
        assert result.requests["num_cached_tokens"].tolist() == [0, 0, 64]
        assert result.provenance["engine"] == backend
        seen = [(0, 0.0, 3, 0, 0), (1, 1.5, 4, 0, 0), (2, 9.0, 3, 64, 0)]
        assert [row[:5] for row in LOG] == seen
        assert LOG[0][5] == LOG[2][5] != LOG[1][5]
    plain = serve(trace, data_parallel_size=2, router=router, enable_prefix_caching=False)
    assert plain.requests["replica"].tolist() == [0, 1, 0]  # in turn
    with pytest.raises(ValueError, match="at-least=x: must be a whole number"):
        serve(trace, router=f"{router}+at-least=x")
    with pytest.raises(ValueError, match="'round-robin' has no parameter 'x'"):
        serve(trace, router="round-robin+x=1")


@pytest.mark.long
@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b"])
def test_both_engines_show_a_router_the_same_prefixes(model: str) -> None:
    trace = workloads.shared_prefix(num_requests=50, request_rate=20.0, seed=0)
    results, logs = [], []
    for backend in ("python", "compiled"):
        LOG.clear()
        results.append(
            kvsim.simulate(
                trace,
                model=model,
                gpu="h200-sxm",
                max_model_len=2048,
                num_gpu_blocks_override=1000,
                data_parallel_size=2,
                router=f"{__name__}:LongestPrefix",
                record_steps=True,
                backend=backend,
            )
        )
        logs.append(list(LOG))
    assert logs[0] == logs[1]
    assert sum(max(row[3:5]) > 0 for row in LOG) > 10
    assert same(*results)


def test_verbose_names_the_router_and_the_replicas_shares(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--num-requests", "8", "--data-parallel-size", "2", "--backend", "python"]
    main(["run", "-v", *options])
    said = capsys.readouterr().err
    assert "router round-robin; requests per replica, %: 50.0, 50.0" in said


def test_a_request_that_ends_at_an_arrival_is_no_longer_outstanding() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 1.0], [8] * 3, [1, 5, 1])
    result = serve(trace, data_parallel_size=2, router="least-outstanding", async_scheduling=False)
    assert result.requests["replica"].tolist() == [0, 1, 0]


def test_closed_loop_sends_when_planned_or_when_a_place_frees() -> None:
    """vllm bench serve --max-concurrency 2: the arrival is the time a request is really sent."""
    trace = Trace.from_arrays([0.0, 0.0, 0.0, 0.0, 9.0], [8] * 5, [2, 3, 2, 1, 1])
    result = serve(trace, max_concurrency=2, async_scheduling=False)
    assert result.requests["arrival_time"].tolist() == pytest.approx([0.0, 0.0, 2.0, 3.0, 9.0])
    assert result.requests["finish_time"].tolist() == [2.0, 3.0, 5.0, 5.0, 10.0]
    assert result.summary["peak_running"] == 2
    assert result.summary["mean_waiting"] == pytest.approx(0.2)  # two wait for a step to end


def test_a_rejected_request_takes_no_place() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 0.0], [8, 10**6, 8], [2, 2, 2])
    result = serve(trace, max_concurrency=1, async_scheduling=False)
    assert result.requests["arrival_time"].tolist() == pytest.approx([0.0, 2.0, 2.0])
    assert result.summary["num_rejected"] == 1
    assert result.summary["completed"] == 2


def test_pipeline_stages_overlap_different_requests() -> None:
    """Two stages: a step takes as long, but the next one starts when the first stage is free."""
    trace = Trace.from_arrays([0.0, 0.0], [8, 8], [2, 2])
    result = serve(trace, pipeline_parallel_size=2, max_num_batched_tokens=8, max_num_seqs=2)
    steps = result.steps[result.steps["num_scheduled_tokens"] > 0]
    assert steps["start_time"].tolist() == [0.0, 0.5, 1.0, 1.5]
    assert result.requests["finish_time"].tolist() == [2.0, 2.5]


def test_the_clock_stops_at_the_horizon():
    trace = Trace.from_arrays([0.0, 1000.0], [10, 10], [5, 5])
    result = kvsim.simulate(
        trace, model="llama-3-8b", gpu="l4", cost_model="constant+seconds=0.1", horizon=10
    )
    assert result.summary["duration"] == 10.0
    assert result.summary["num_unsent"] == 1
    assert result.summary["num_in_flight"] == 0


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(("overlaps", "steps"), [(False, 2), (True, 3)])
def test_a_client_answers_an_answer_too_late_for_the_step_scheduled_at_its_end(
    engine: str, overlaps: bool, steps: int, backend: str
) -> None:
    """The third request waits for the first one's end, while the second one runs on."""
    flag = (
        {"async_scheduling": overlaps}
        if engine == "vllm"
        else {"disable_overlap_schedule": not overlaps}
    )
    trace = Trace.from_arrays([0.0, 0.0, 0.0], [16, 16, 16], [4, 12, 2])
    result = kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="h100-sxm",
        engine=engine,
        cost_model="constant+seconds=1",
        max_concurrency=2,
        backend=backend,
        **flag,
    )
    third = result.requests[2]
    assert third["arrival_time"] == pytest.approx(result.requests["finish_time"][0])
    assert third["first_token_time"] - third["arrival_time"] == pytest.approx(steps)


def test_a_turn_without_think_time_misses_the_step_scheduled_at_the_answer() -> None:
    trace = Trace.from_arrays([0.0, 0.0, 0.0], [16, 16, 16], [4, 12, 2], session_id=[7, 8, 7])
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "cost_model": "constant+seconds=1"}
    result = kvsim.simulate(trace, session_think_time=0.0, async_scheduling=False, **options)
    later = result.requests[2]
    assert later["first_token_time"] - later["arrival_time"] == pytest.approx(2.0)


def test_a_request_waits_for_the_latest_of_ends_that_are_reported_in_any_order():
    trace = Trace.from_arrays(
        [0.0, 0.0, 1.0], [8] * 3, [1] * 3, after=[[], [], [0, 1]], think_time=[0.0, 0.0, 2.0]
    )
    world = World(initial_time=0.0)
    clients = Clients(world, trace, lambda row: None)
    world.process(clients.process())
    world.run(until=0.5)
    assert clients.least_pause == 2.0
    clients.ended([1], 7.0)  # replicas advance by themselves, so an earlier end may come later
    clients.ended([0], 5.0)
    assert clients.least_pause == math.inf
    world.run()
    assert clients.sent_time[2] == math.nextafter(7.0, math.inf) + 2.0


def test_the_least_pause_of_many_requests_follows_their_ends():
    draw, number = np.random.default_rng(0), 200
    pauses = draw.integers(1, 9, number) / 4
    after = [[row - number] if row >= number else [] for row in range(2 * number)]
    trace = Trace.from_arrays(
        [0.0] * number + [1e9] * number,
        *([8] * 2 * number, [1] * 2 * number),
        after=after,
        think_time=[0.0] * number + pauses.tolist(),
    )
    world = World(initial_time=0.0)
    clients = Clients(world, trace, lambda row: None)
    world.process(clients.process())
    world.run(until=0.5)
    left = set(range(number))
    for row in draw.permutation(number).tolist():
        assert clients.least_pause == min(pauses[list(left)])
        clients.ended([row], 10.0)
        left.remove(row)
    assert clients.least_pause == math.inf
