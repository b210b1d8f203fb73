"""A rule of a router chooses alike in Python, by request, and in the compiled loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.compiled.translate import unit_of
from kvsim.fleet import fleet
from kvsim.fleet.prefix_index import key_tables
from kvsim.fleet.routers import preble
from kvsim.fleet.routers.sglang_cache_aware import SglangCacheAware
from kvsim.fleet.routing import arrival_loop, rule_router
from kvsim.fleet.routing.router import ROUTERS, make_router
from kvsim.fleet.routing.rule_router import RuleRouter, draw_words
from kvsim.fleet.tracking import bookkeeping
from kvsim.records.routing import Draws
from kvsim.rules.routing.draws import random_below, random_share
from kvsim.testing import equal_tables

#: Texts of routers by what they read; short limits evict from their indices.
TEXTS = (
    "least-outstanding",
    "power-of-two",
    "vllm-dp",
    "vllm-dp+count-sent=false+scrape-interval=0.013",
    "least-kv",
    "aibrix-throughput+scrape-interval=0.2",
    "chwbl",
    "chwbl+epsilon=0.01+prefix-tokens=500",
    "sglang-cache-aware",
    "sglang-cache-aware+balance-abs=2+eviction-interval=0.5+max-tree-size=20000",
    "sglang-cache-aware+entry-tokens=1",
    "ray-prefix-aware+eviction-interval=0.5+eviction-threshold=30000+eviction-target=20000",
    "ray-prefix-aware+imbalanced-threshold=2",
    "aibrix-prefix-cache",
    "aibrix-prefix-cache+max-entries=40+imbalance=2",
    "llm-d",
    "llm-d+lru-entries=50+running=1+active=1+tokens=2+load=1",
    "llm-d+max-blocks=3+prefix-scale=holders",
    "llm-d+index=precise",
    "llm-d+picker=random",
    "llm-d-token-aware+max-wait=0.001",
    "llm-d-token-aware+index=approximate",
    "vllm-kv-aware",
    "production-stack",
    "production-stack+policy=loadaware",
    "production-stack+policy=kvaware",
    "production-stack+policy=kvaware+relief=3+threshold=300",
    "preble",
    "preble+window=0.5+warm-up=2+balance=1.1",
    "preble+own-prefill=true+entry-tokens=16+warm-up=4",
)
RUN = arrival_loop.ArrivalLoop.run
OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "a100-80gb",
    "data_parallel_size": 4,
    "max_model_len": 4096,
}


def drawn(seed: int) -> tuple[kvsim.Trace, dict[str, Any]]:
    """Draw conversations, of which some requests come together, and a fleet."""
    rng = np.random.default_rng(seed)
    trace = workloads.multi_turn(
        num_requests=250,
        request_rate=float(rng.choice([40, 120, 400])),
        arrival="gamma+cv=3",
        seed=seed,
    )
    times = trace.arrival_time.copy()
    together = rng.random(len(times)) < 0.1
    times[1:][together[1:]] = times[:-1][together[1:]]
    options = OPTIONS | {
        "data_parallel_size": int(rng.integers(2, 9)),
        "max_num_seqs": int(rng.choice([4, 64])),
        "num_gpu_blocks_override": int(rng.choice([600, 4000])),
        "block_size": int(rng.choice([16, 32])),
        "seed": seed,
    }
    return trace, options


def check(monkeypatch: pytest.MonkeyPatch, text: str, trace: kvsim.Trace, **options: Any) -> Any:
    """Compare the runs with and without the loop; return the first."""
    found, loops = [], []
    for together in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(
                arrival_loop.ArrivalLoop, "run", lambda loop: loops.append(1) or RUN(loop)
            )
            if not together:
                patch.setattr(fleet, "can_route", lambda *args: False)
            found.append(kvsim.simulate(trace, router=text, **options))
    one, other = found
    assert len(loops) == 1
    assert equal_tables(one.requests, other.requests)
    assert equal_tables(one.memory, other.memory)
    assert repr(one.summary) == repr(other.summary)  # routing and replicas are in it
    return one


@pytest.mark.long
@pytest.mark.parametrize("text", TEXTS)
def test_the_loop_chooses_alike(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(2):
        trace, options = drawn(seed)
        check(monkeypatch, text, trace, **options)


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ["least-outstanding", "preble+window=2+warm-up=4", "vllm-dp", "ray-prefix-aware"]
)
def test_the_loop_chooses_alike_with_replicas_left_behind(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeping, "MOST_LOOKUPS", 32)  # they need the exact state of all
    for seed in range(4):
        trace, options = drawn(seed)
        check(monkeypatch, text, trace, **options)


#: Steps of a second, of which some end at the time of an arrival, and begin another one then.
IN_STEP = {"cost_model": "constant+seconds=1", "async_scheduling": False}


def test_an_end_at_the_time_of_an_arrival_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fifth request finds (1, 2) in flight; then the second ends, and the sixth (2, 1)."""
    times, outputs = [0.0, 0.0, 0.0, 0.0, 1.5, 2.0], [1, 2, 9, 9, 9, 9]
    trace = kvsim.Trace.from_arrays(times, [16] * 6, outputs)
    options = OPTIONS | IN_STEP | {"data_parallel_size": 2}
    found = check(monkeypatch, "least-outstanding", trace, **options)
    assert found.requests["replica"].tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ["vllm-kv-aware+event-delay=0", "llm-d+index=precise+event-delay=0"]
)
def test_the_loop_chooses_alike_at_the_end_of_steps(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, options = drawn(2)
    times = np.floor(trace.arrival_time * 8) / 4
    check(monkeypatch, text, replace(trace, arrival_time=times), **options | IN_STEP)


def test_every_rule_of_a_router_is_translated() -> None:
    names = [*ROUTERS.names(), *(text for text in TEXTS if text.startswith("production-stack+"))]
    rules = {r.rule for n in names if isinstance(r := make_router(n), RuleRouter)}
    for rule in rules:
        assert "define i64" in unit_of("").entry_of("entry", rule, 2 - rule.__code__.co_argcount)


@pytest.mark.long
@pytest.mark.parametrize("text", ["sglang-cache-aware", "preble+window=0.5"])
def test_the_loop_chooses_alike_however_often_it_returns(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival_loop, "DECISIONS_PER_CALL", 3)
    monkeypatch.setattr(arrival_loop, "STEPS_PER_CALL", 5)
    monkeypatch.setattr(key_tables, "FIRST_LINKS", 2)
    monkeypatch.setattr(preble, "FIRST_ROOM", 65)
    monkeypatch.setattr(rule_router, "WORDS", 65)
    trace, options = drawn(1)
    check(monkeypatch, text, trace, **options)


def test_prompts_without_segments_are_routed_by_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = workloads.sharegpt(num_requests=200, request_rate=60.0, seed=3)
    assert not trace.has_segments
    check(monkeypatch, "sglang-cache-aware", trace, **OPTIONS | {"max_model_len": 1024})


def test_a_router_of_the_users_chooses_by_its_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subclass of a router with a rule may choose in another way."""

    class First(SglangCacheAware):
        def choose(self, request: Any, replicas: Any) -> int:
            super().choose(request, replicas)
            return 0

    monkeypatch.setattr(arrival_loop.ArrivalLoop, "run", None)
    trace, options = drawn(0)
    with ROUTERS.lend(First) as name:
        result = kvsim.simulate(trace, router=name, **options)
    assert set(result.requests["replica"].tolist()) == {0}


def test_draws_are_those_of_numpy() -> None:
    draws, rng, other = Draws(), np.random.default_rng(5), np.random.default_rng(5)
    kinds = np.random.default_rng(6)
    for _ in range(5000):
        draw_words(draws, rng)
        number = int(kinds.choice([1, 2, 3, 7, 64, 2**31 - 1]))
        if kinds.random() < 0.3:
            assert random_share(draws) == other.random()
        else:
            assert random_below(draws, number) == int(other.integers(number))
