"""Replicas in a row, and what is read where it lies, change nothing that is simulated."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
import workloads
from kvsim.config import Config
from kvsim.engine.replica import Replica
from kvsim.fleet.gateways import Gateways
from kvsim.fleet.prefix_index import live_reader
from kvsim.fleet.prefix_index.log_reader import LogReader
from kvsim.fleet.prefix_index.prefix_holders import PrefixHolders
from kvsim.fleet.simulate import run
from kvsim.kv import events
from kvsim.records.record import NONE
from kvsim.rules.kv import next_own_blocks
from kvsim.testing import equal_tables

OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "data_parallel_size": 3,
    "num_gpu_blocks_override": 800,
    "max_model_len": 8192,
}


def serve(**options: Any) -> Any:
    trace = workloads.multi_turn(num_requests=200, request_rate=40.0, seed=1)
    return kvsim.simulate(trace, **OPTIONS | options)


@pytest.mark.parametrize("router", ["dynamo", "least-outstanding"])
def test_every_end_is_counted_once(router: str) -> None:
    trace = workloads.multi_turn(num_requests=200, request_rate=40.0, seed=1)
    told: list[int] = []
    config = Config.build(**OPTIONS, router=router)
    run(config, trace, on_progress=told.append)
    assert told == [64, 128, 192]


@pytest.mark.long
@pytest.mark.parametrize(("delay", "room"), [(0.0, 2), (0.005, 2), (0.2, 150), (3.0, 300)])
def test_logs_that_spill_tell_the_same(
    delay: float, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = f"dynamo+event-delay={delay}"
    one = serve(router=router)
    fetched: list[int] = []
    fetch = LogReader._fetch

    def noted(feed: LogReader, place: int) -> None:
        fetched.append(int(feed._taken[place]))
        fetch(feed, place)

    monkeypatch.setattr(live_reader, "is_live", lambda replicas, delay: False)
    monkeypatch.setattr(LogReader, "_fetch", noted)
    monkeypatch.setattr(events, "EVENTS_PER_READING", room)
    other = serve(router=router)
    assert fetched
    assert any(fetched) or room == 2  # some were partly known
    assert equal_tables(one.requests, other.requests)
    assert one.summary == other.summary


def test_a_row_that_the_host_runs_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    one = serve(router="dynamo")
    monkeypatch.setattr(Replica, "entry_address", 0)
    other = serve(router="dynamo")
    assert equal_tables(one.requests, other.requests)
    assert one.summary == other.summary


@pytest.mark.long
@pytest.mark.parametrize("router", ["session", "least-outstanding"])
def test_replicas_that_wait_for_each_other_take_turns_alike(
    router: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = workloads.agentic(
        num_requests=200, request_rate=100, turns=6.0, sub_agents=60.0, think_time=0.05,
        system=100, first=400, growth=50, output=200, max_prompt=4000,
    )  # fmt: skip
    one = kvsim.simulate(trace, router=router, **OPTIONS)
    monkeypatch.setattr(Replica, "entry_address", 0)
    other = kvsim.simulate(trace, router=router, **OPTIONS)
    assert equal_tables(one.requests, other.requests)


@pytest.mark.long
def test_who_is_preempted_after_a_first_token_is_heard() -> None:
    name = "shared-prefix+num-prefixes=5+prefix=64+suffix=100+output=120"
    trace = workloads.generate(name, num_requests=80, request_rate=3.0, seed=1)
    options = OPTIONS | {"data_parallel_size": 2, "num_gpu_blocks_override": 40}
    options |= {"max_model_len": 600, "router": "dynamo"}
    one = kvsim.simulate(trace, **options)
    assert one.summary["num_preemptions"] > 10
    other = kvsim.simulate(trace, backend="python", **options)
    assert equal_tables(one.requests, other.requests)


@pytest.mark.parametrize("blocks", [520, 800])
def test_a_prompt_is_looked_up_on_all_replicas_as_on_each_alone(
    blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first replica's keys serve all; then each computes its own keys."""
    together, alone = PrefixHolders.most, []

    def compared(holders: PrefixHolders, request: Any, place: int | None = None) -> int:
        found = together(holders, request, None)
        for replica in holders._replicas:
            next_own_blocks(replica.state.kv).owner = NONE
        each = [replica.num_cached_tokens(request) for replica in holders._replicas]
        alone.append(each)
        assert found == max(each)
        return found

    monkeypatch.setattr(PrefixHolders, "most", compared)
    monkeypatch.setattr(Gateways, "_deepest", lambda gateways, request: None)
    options: dict[str, Any] = {"max_concurrency": 30, "num_gpu_blocks_override": blocks}
    one = serve(router="least-outstanding", backend="compiled", **options)
    assert len(alone) == 200
    assert len({each.index(max(each)) for each in alone}) == 3
    monkeypatch.undo()
    other = serve(router="least-outstanding", backend="compiled", **options)
    assert equal_tables(one.requests, other.requests)
