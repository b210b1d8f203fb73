"""Decisions of a router in one compiled loop are those it makes request by request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
import workloads
from kvsim.compiled import path_set
from kvsim.compiled.loops import translated
from kvsim.config import Config
from kvsim.fleet import fleet
from kvsim.fleet.prefix_index.prompt_keys import PromptKeys
from kvsim.fleet.routers.dynamo import Dynamo
from kvsim.fleet.routing import arrival_loop
from kvsim.fleet.routing.arrival_loop import ArrivalLoop
from kvsim.fleet.routing.path_set import PathSet
from kvsim.fleet.simulate import run
from kvsim.plugins.cost import CostRules, Work
from kvsim.testing import equal_tables

OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "data_parallel_size": 4,
    "max_model_len": 8192,
    "router": "dynamo",
}


def conversations(**options: Any) -> kvsim.Trace:
    """Return conversations, of which some come together."""
    given = {"num_requests": 400, "request_rate": 60.0, "arrival": "gamma+cv=3", "seed": 1}
    return workloads.multi_turn(**given | options)


def serve(monkeypatch: pytest.MonkeyPatch, *, together: bool, trace: Any, **options: Any) -> Any:
    """Serve a trace; says how often the loop was called."""
    calls: list[int] = []
    with monkeypatch.context() as patch:
        run = ArrivalLoop.run

        def noted(loop: ArrivalLoop) -> None:
            calls.append(1)
            run(loop)

        patch.setattr(ArrivalLoop, "run", noted)
        if not together:
            patch.setattr(fleet, "can_route", lambda *args: False)
        result = kvsim.simulate(trace, **OPTIONS | options)
    assert len(calls) == together
    return result


def check(monkeypatch: pytest.MonkeyPatch, trace: Any = None, **options: Any) -> Any:
    """Compare both ways to serve a trace."""
    trace = conversations() if trace is None else trace
    one, other = (
        serve(monkeypatch, together=together, trace=trace, **options) for together in (True, False)
    )
    assert equal_tables(one.requests, other.requests)
    assert equal_tables(one.memory, other.memory)
    assert repr(one.summary) == repr(other.summary)  # routing and replicas are in it
    return one


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"router": "dynamo+decay=0.5+active-weight=2"},
        {"router": "dynamo+credit=0.5+prefill-weight=3"},
        {"router": "dynamo+credit=0"},
        {"router": "dynamo+event-delay=0.03"},
        {"router": "dynamo+event-delay=0"},
        {"block_size": 64},
        {"num_gpu_blocks_override": 700},
        {"async_scheduling": False},
        {"horizon": 3.0},
        {"seed": 7},
        {"data_parallel_size": 13, "max_num_seqs": 4},
        {"front_end_latency": 0.004, "front_end_latency_per_token": 1e-6},
        {"router": "conductor"},
        {"router": "conductor+event-delay=0.03", "max_num_batched_tokens": 256},
        {"router": "conductor", "num_gpu_blocks_override": 700, "data_parallel_size": 13},
        {"router": "conductor", "cost_model": "constant+seconds=0.03"},
    ],
    ids=str,
)
def test_the_loop_decides_alike(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, **options)


def test_it_decides_alike_however_often_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_loop, "FIRST_ROOM", 1)
    monkeypatch.setattr(arrival_loop, "DECISIONS_PER_CALL", 3)
    monkeypatch.setattr(arrival_loop, "STEPS_PER_CALL", 5)
    check(monkeypatch, conversations(request_rate=300.0))


def test_who_cannot_be_served_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = conversations(turns=8)
    result = check(monkeypatch, trace, max_model_len=1024)
    assert 0 < result.summary["num_rejected"] < len(trace)


def test_the_loop_is_given_whom_replicas_have_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes keys of whole prompts."""
    seen: list[int] = []
    run = ArrivalLoop.run
    monkeypatch.setattr(ArrivalLoop, "run", lambda loop: seen.extend(loop._rows) or run(loop))
    trace = conversations(turns=8)
    kvsim.simulate(trace, **OPTIONS | {"max_model_len": 1024})
    fits = trace.num_prompt_tokens < 1024
    assert seen == np.flatnonzero(fits).tolist()
    assert not fits.all()


@pytest.mark.parametrize("length", [159, 160, 161, 176])
def test_prompts_of_whole_blocks_come_again(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last token is computed, whoever has all blocks; prompts end in a later segment."""
    who = np.random.default_rng(0).integers(20, size=200).tolist()
    segments = [[(k, 0, 100), (k, 100, length - 109), (k + 99, 0, 6), (k + 99, 9, 3)] for k in who]
    times = np.linspace(0.0, 4.0, 200)
    trace = kvsim.Trace.from_arrays(times, [length] * 200, [40] * 200, segments=segments)
    result = check(monkeypatch, trace)
    assert 0 < result.summary["routing"]["best_hit_rate"] <= (length - 1) // 16 * 16 / length


@pytest.mark.parametrize("delay", [0.005, 0.03])
def test_events_become_known_while_a_step_runs(
    delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same prompts come again within a step: what is known of a replica changes in it."""
    draw = np.random.default_rng(0)
    segments = [
        [(int(who), 0, 1600), (100 + k, 0, 8)] for k, who in enumerate(draw.integers(6, size=300))
    ]
    times = np.sort(draw.uniform(0.0, 3.0, 300))
    trace = kvsim.Trace.from_arrays(times, [1608] * 300, [60] * 300, segments=segments)
    result = check(monkeypatch, trace, router=f"dynamo+event-delay={delay}")
    assert result.summary["prefix_cache_hit_rate"] > 0.3


def test_requests_at_one_instant_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = conversations()
    times = np.floor(trace.arrival_time)
    result = check(monkeypatch, replace(trace, arrival_time=times), data_parallel_size=2)
    rows = result.requests
    first = rows["replica"][rows["arrival_time"] == times[0]]
    assert len(set(first.tolist())) == 2


def test_every_end_is_counted_once() -> None:
    told: list[int] = []
    run(Config.build(**OPTIONS), conversations(), on_progress=told.append)
    assert told == list(range(64, 400, 64))


class Slow(CostRules):
    """A cost model of one's own, whose state would not be that of a replica."""

    def price(self, work: Work) -> float:
        return 0.01 + 1e-5 * work.num_tokens


class Own(Dynamo):
    """A router of one's own that calls itself a Dynamo."""


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"router": "dynamo+temperature=0.5"},
        {"router": "dynamo+events=false"},
        {"router": "dynamo+event-delay=1"},
        {"router": "dynamo+gateways=2"},
        {"router": f"{__name__}:Own"},
        {"router": "conductor+ttft-slo=9"},
        {"router": "conductor+tbt-slo=9"},
        {"router": "conductor", "cost_model": f"{__name__}:Slow"},
        {"router": "preble+own-prefill=true", "cost_model": f"{__name__}:Slow"},
        {"scheduler": "vllm-v0"},
        {"max_concurrency": 30},
        {"backend": "python"},
        {"failures": "at+time=1+replica=0"},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_others_are_asked_request_by_request(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(monkeypatch, together=False, trace=conversations(num_requests=40), **options)
    monkeypatch.setattr(fleet, "ArrivalLoop", None)
    kvsim.simulate(conversations(num_requests=40), **OPTIONS | options)


PIECES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=5
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    prompts=st.lists(PIECES, min_size=1, max_size=8),
    salts=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    size=st.integers(1, 4),
    order=st.randoms(use_true_random=False),
)
def test_different_blocks_are_counted_without_keys(
    prompts: list[Any], salts: list[int], size: int, order: Any
) -> None:
    number = len(prompts)
    trace = kvsim.Trace.from_arrays(
        arrival_time=np.arange(number, dtype=float),
        num_prompt_tokens=[sum(length for _, _, length in pieces) for pieces in prompts],
        num_output_tokens=[1] * number,
        segments=prompts,
        cache_salt=salts[:number],
    )
    keys = PromptKeys(trace, compiled=True)
    columns = keys.columns()
    add, remove = map(translated, (path_set.add_prompt, path_set.remove_prompt))
    there, counts, known = np.zeros((1, number), np.int32), np.zeros(1, np.int64), PathSet()
    for row in range(number):
        path = keys.of(row, size).tobytes()
        assert add(columns, there, counts, 0, row, size) == known.add(path)
    rows = list(range(number))
    order.shuffle(rows)
    for row in rows:
        path = keys.of(row, size).tobytes()
        assert remove(columns, there, counts, 0, row, size) == known.remove(path)
    assert counts[0] == 0
