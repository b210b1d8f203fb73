"""Clients that wait for answers are served alike event by event and in the compiled loop."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.compiled.replica_set import just_after
from kvsim.config import Config
from kvsim.fleet import fleet
from kvsim.fleet.prefix_index import key_tables
from kvsim.fleet.routing import arrival_loop, rule_router
from kvsim.fleet.routing.client_loop import ClientLoop
from kvsim.fleet.simulate import run
from kvsim.results.tables import FinishReason
from kvsim.testing import equal_tables
from kvsim.trace.cuts import with_columns

#: Routers by what they read: metrics now and then, the requests sent, the replicas' events.
TEXTS = ("least-kv", "llm-d", "llm-d+index=precise", "vllm-dp+scrape-interval=0.3")
LONG = (
    "dynamo",
    "sglang-cache-aware+eviction-interval=0.5+max-tree-size=2000",
    "conductor",
    "preble+window=2+warm-up=3",
)
RUN = ClientLoop.run
OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "data_parallel_size": 4,
    "max_model_len": 4096,
}


def drawn(seed: int, *, number: int = 200) -> tuple[kvsim.Trace, dict[str, Any]]:
    """Draw requests that wait for the start or end of others, many at one time, and a fleet."""
    rng = np.random.default_rng(seed)
    trace = workloads.multi_turn(num_requests=number, request_rate=100.0, seed=seed)
    after: list[list[int]] = [[] for _ in range(number)]
    for row in range(1, number):
        for _ in range(int(rng.choice(4, p=[0.25, 0.4, 0.25, 0.1]))):
            other = int(rng.integers(max(row - 30, 0), row))
            after[row].append(-other - 1 if rng.random() < 0.3 else other)
    times = trace.arrival_time.copy()
    together = rng.random(number) < 0.2
    times[1:][together[1:]] = times[:-1][together[1:]]
    waiting = with_columns(
        trace,
        arrival_time=times,
        after_offsets=np.cumsum([0, *map(len, after)]),
        after=np.array([code for codes in after for code in codes], np.int64),
        think_time=rng.choice([0.0, 0.01, 0.2, 1.5], number),
    )
    options = OPTIONS | {
        "data_parallel_size": int(rng.integers(2, 7)),
        "max_num_seqs": int(rng.choice([4, 64])),
        "num_gpu_blocks_override": int(rng.choice([600, 4000])),
        "seed": seed,
    }
    return waiting, options


def check(monkeypatch: pytest.MonkeyPatch, trace: kvsim.Trace, **options: Any) -> Any:
    """Compare the runs with and without the loop; return the first."""
    found, ends = [], []
    for together in (True, False):
        loops: list[int] = []
        with monkeypatch.context() as patch:
            patch.setattr(ClientLoop, "run", lambda loop, noted=loops: noted.append(1) or RUN(loop))
            if not together:
                patch.setattr(fleet, "can_route", lambda *args: False)
            told: list[int] = []
            found.append(run(Config.build(**options), trace, on_progress=told.append))
        assert len(loops) == together
        ends.append(told)
    one, other = found
    assert equal_tables(one.requests, other.requests)
    assert equal_tables(one.memory, other.memory)
    assert repr(one.summary) == repr(other.summary)  # routing and replicas are in it
    assert ends[0] == ends[1]
    return one


@pytest.mark.long
@pytest.mark.parametrize(
    "text", [*TEXTS, *(pytest.param(text, marks=pytest.mark.long) for text in LONG)]
)
def test_the_loop_serves_alike(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        trace, options = drawn(seed)
        check(monkeypatch, trace, router=text, **options)


@pytest.mark.long
def test_the_loop_serves_alike_however_often_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_loop, "DECISIONS_PER_CALL", 3)
    monkeypatch.setattr(arrival_loop, "STEPS_PER_CALL", 2)
    monkeypatch.setattr(key_tables, "FIRST_LINKS", 2)
    monkeypatch.setattr(rule_router, "WORDS", 65)
    trace, options = drawn(3)
    check(monkeypatch, trace, router="llm-d", **options)


@pytest.mark.parametrize(
    "given",
    [
        {"max_model_len": 1024},
        pytest.param({"horizon": 2.0}, marks=pytest.mark.long),
        pytest.param({"front_end_latency_per_token": 1e-6}, marks=pytest.mark.long),
        pytest.param({"async_scheduling": False}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_the_loop_serves_alike_with(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trace, options = drawn(4)
    result = check(monkeypatch, trace, router="llm-d", **options | given)
    reasons = set(result.requests["finish_reason"].tolist())
    # Without a horizon, some prompts that are too long are sent.
    assert (FinishReason.REJECTED in reasons) == ("horizon" not in given)
    assert (FinishReason.UNSENT in reasons) == ("horizon" in given)


def test_turns_with_planned_times_wait_for_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = workloads.multi_turn(num_requests=200, request_rate=60.0, seed=5)
    check(monkeypatch, trace, router="llm-d", session_think_time=0.3, **OPTIONS)


@pytest.mark.long
def test_clients_with_more_than_waits_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientLoop, "run", None)
    trace, options = drawn(6, number=40)
    for given in ({"max_concurrency": 3}, {"lanes": 2}, {"idle_cap": 0.1}):
        kvsim.simulate(trace, router="llm-d", **options | given)


def test_the_next_float_is_that_of_python() -> None:
    rng = np.random.default_rng(1)
    times = [0.0, 1.0, 2.0, 0.5, 1e-300, 3e7, *(10 ** rng.uniform(-9, 12, 10_000)).tolist()]
    for time in [*times, *(math.nextafter(2.0**k, 0) for k in range(-20, 40)), -1.5]:
        assert just_after(time) == math.nextafter(time, math.inf)
