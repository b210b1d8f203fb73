"""Pools that are looked up say what an index that events keep would."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
import workloads
from kvsim.engine.event_log import ReplicaEventLog
from kvsim.fleet.prefix_index import live_reader
from kvsim.fleet.prefix_index.log_reader import LogReader
from kvsim.fleet.routing.router import Router
from kvsim.kv import events
from kvsim.testing import equal_tables

OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "data_parallel_size": 3,
    "max_model_len": 8192,
}
#: What a router of this file was told, choice by choice.
SEEN: list[Any] = []


class Curious(Router):
    """Asks the index for all it can answer, and deals in turn."""

    def __init__(self, *, event_delay: float = 0.005) -> None:
        self.event_delay = event_delay
        self._number = 0

    def choose(self, request: Any, replicas: Any) -> int:
        index, path = self.facts.index, self.facts.entry_path(request)
        sizes = [index.size(place) for place in range(len(replicas))]
        held = [index.holders(key) for key in path[::7].tolist()]
        SEEN.append((index.match(path), sizes, held))
        self._number += 1
        return self._number % len(replicas)


def serve(monkeypatch: pytest.MonkeyPatch, *, live: bool, **options: Any) -> Any:
    """Serve conversations, of which some come together."""
    trace = workloads.multi_turn(num_requests=250, request_rate=40.0, arrival="gamma+cv=3", seed=1)
    made: list[Any] = []
    with monkeypatch.context() as patch:
        kind = live_reader.LiveReader if live else LogReader
        start = kind.__init__

        def noted(self: Any, *args: Any, **given: Any) -> None:
            made.append(self)
            start(self, *args, **given)

        patch.setattr(kind, "__init__", noted)
        if not live:
            patch.setattr(live_reader, "is_live", lambda replicas, delay: False)
        result = kvsim.simulate(trace, **OPTIONS | options)
    assert len(made) == 1
    return result


@pytest.mark.long
@pytest.mark.parametrize(
    ("router", "options"),
    [
        ("dynamo", {}),
        ("dynamo+event-delay=0", {"num_gpu_blocks_override": 700}),
        ("dynamo+event-delay=0.05", {"num_gpu_blocks_override": 700, "async_scheduling": False}),
        ("dynamo+gateways=2", {"num_gpu_blocks_override": 520, "max_num_seqs": 8}),
        ("conductor", {"num_gpu_blocks_override": 700, "max_concurrency": 20}),
        ("llm-d+index=precise", {"num_gpu_blocks_override": 700, "block_size": 4}),
        (
            "dynamo",
            {
                "num_gpu_blocks_override": 700,
                "failures": "at+time=2+replica=1+policy=retry",
                "cold_start": 1,
            },
        ),
    ],
)
def test_runs_are_the_same(
    router: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (serve(monkeypatch, live=live, router=router, **options) for live in (True, False))
    for name in ("requests", "memory"):
        assert equal_tables(getattr(one, name), getattr(other, name))
    assert one.summary == other.summary
    assert one.summary["routing"]["predicted_hit_rate"] > 0


@pytest.mark.long
@pytest.mark.parametrize(("delay", "num_blocks"), [(0.0, 520), (0.01, 700), (0.05, 520)])
def test_every_answer_is_the_same(
    delay: float, num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = f"{__name__}:Curious+event-delay={delay}"
    told = []
    for live in (True, False):
        SEEN.clear()
        options = {"router": router, "num_gpu_blocks_override": num_blocks}
        serve(monkeypatch, live=live, **options)
        told.append(list(SEEN))
    assert told[0] == told[1]
    matched = [depth for answer, _, _ in told[0] for depth in answer]
    assert min(matched) == 0
    assert max(matched) > 20


@pytest.mark.parametrize(("room", "delay"), [(2, 0.005), (40, 0.05)])
def test_a_log_that_is_full_keeps_what_is_not_known(
    room: int, delay: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"router": f"dynamo+event-delay={delay}", "num_gpu_blocks_override": 600}
    one = serve(monkeypatch, live=True, **options)
    widened: list[int] = []
    widen = ReplicaEventLog.widen

    def noted(self: ReplicaEventLog) -> None:
        widened.append(self._log.num_events)
        widen(self)

    monkeypatch.setattr(ReplicaEventLog, "widen", noted)
    monkeypatch.setattr(events, "EVENTS_PER_READING", room)
    other = serve(monkeypatch, live=True, **options)
    assert widened
    assert equal_tables(one.requests, other.requests)
    assert one.summary == other.summary
