"""The history of every block: known cases, the tables of the same run, both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.config import Config
from kvsim.engine.history.block_recorder import BlockRecorder
from kvsim.fleet.pool_setups import resolve_fleet
from kvsim.fleet.simulate import serve
from kvsim.report.page.prefix_tree import prefix_tree
from kvsim.results.block_events import (
    BLOCK_EVENTS,
    DROPS,
    TAKES,
    BlockEvent,
    BlockState,
    block_runs,
    residency,
)
from kvsim.testing import equal_tables

SMALL: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "l4",
    "max_model_len": 512,
    "record_block_events": True,
    "backend": "python",
}
#: Deployments whose tables differ in kind: short of blocks, shared, windows, samples, fleets.
CASES: dict[str, dict[str, Any]] = {
    "short of blocks": {"num_gpu_blocks_override": 60},
    "swapping": {"num_gpu_blocks_override": 60, "scheduler": "vllm-v0", "preemption_mode": "swap"},
    "samples": {"num_gpu_blocks_override": 300, "scheduler": "vllm-v0", "num_samples": 3},
    "windows": {"model": "gemma-3-27b", "num_gpu_blocks_override": 400, "max_model_len": 2048},
    "states": {"model": "qwen3-next-80b-a3b", "gpu": "b200", "num_gpu_blocks_override": 400},
    "synchronous": {"num_gpu_blocks_override": 60, "async_scheduling": False},
    "a radix tree": {"engine": "sglang", "num_gpu_blocks_override": 1000, "block_size": 1},
    "a radix tree of pages": {"engine": "sglang", "num_gpu_blocks_override": 60, "block_size": 16},
    "tiered": {"num_gpu_blocks_override": 60, "allocator": "tiered+host-gib=1"},
    "native offloading": {
        "num_gpu_blocks_override": 60,
        "kv_offloading_size": 1,
        "kv_offloading_backend": "native",
    },
    "a fleet": {"num_gpu_blocks_override": 60, "data_parallel_size": 2},
    "prompts apart": {
        "num_gpu_blocks_override": 100,
        "num_prefill_workers": 1,
        "num_decode_workers": 1,
    },
}


def shared(num_requests: int = 40) -> kvsim.Trace:
    """Requests with two prefixes in common, close together."""
    at = np.arange(num_requests) * 0.05
    segments = [[(1 + k % 2, 0, 64), (100 + k, 0, 20 + k)] for k in range(num_requests)]
    prompt = np.array([84 + k for k in range(num_requests)])
    return kvsim.Trace.from_arrays(at, prompt, np.full(num_requests, 40), segments=segments)


def counts(events: Any) -> dict[str, int]:
    return {kind.name: int((events["kind"] == kind).sum()) for kind in BlockEvent}


def test_one_request_takes_a_block_per_sixteen_slots_and_frees_them_last_to_first() -> None:
    trace = workloads.fixed(prompt=40, output=10, num_requests=1, request_rate=1.0)
    result = kvsim.simulate(trace, **SMALL, enable_prefix_caching=False)
    events = result.block_events
    assert counts(events) == dict.fromkeys(counts(events), 0) | {
        "ALLOC": 4,  # 49 slots: the last token's is never written
        "FREE": 4,
        "ADMIT": 1,
    }
    takes = events[events["kind"] == BlockEvent.ALLOC]
    assert takes["place"].tolist() == [0, 1, 2, 3]
    row = result.requests[0]
    assert takes["time"][:3].tolist() == [row["arrival_time"]] * 3 < [takes["time"][3]]
    drops = events[events["kind"] == BlockEvent.FREE]
    assert drops["place"].tolist() == [3, 2, 1, 0]
    assert (drops["time"] == row["finish_time"]).all()
    runs = block_runs(events, row["finish_time"])
    assert runs["state"].tolist() == [BlockState.RUNNING] * 4
    assert (runs["end"] == row["finish_time"]).all()


def test_a_second_request_with_the_same_prompt_hits_its_blocks() -> None:
    segments = [[(1, 0, 40)], [(1, 0, 40)]]
    trace = kvsim.Trace.from_arrays(
        np.array([0.0, 0.1]), np.array([40, 40]), np.array([20, 20]), segments=segments
    )
    result = kvsim.simulate(trace, **SMALL)
    events = result.block_events
    hits = events[events["kind"] == BlockEvent.HIT]
    assert hits["request"].tolist() == [1, 1]
    assert hits["place"].tolist() == [0, 1]
    stored = {(row["block"], row["key"]) for row in events[events["kind"] == BlockEvent.STORE]}
    assert {(row["block"], row["key"]) for row in hits} <= stored
    assert result.requests["num_cached_tokens"].tolist() == [0, 32]
    runs = block_runs(events, result.summary["duration"])
    together = runs[runs["state"] == BlockState.SHARED]
    assert together["num_refs"].tolist() == [2, 2]
    assert (together["request"] == 0).all()  # who has held it longest


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_events_recount_to_the_memory_table(name: str) -> None:
    """Blocks in use and cached, replayed from events, are those of the samples of the run."""
    result = kvsim.simulate(shared(), **{**SMALL, **CASES[name]})
    events = result.block_events
    assert (np.diff(events["time"]) >= 0).all()
    for replica in np.unique(result.memory["replica"]).tolist():
        mine = result.memory[result.memory["replica"] == replica]
        waits = name.startswith(("prompts apart", "native", "a radix tree"))
        check_replica(events[events["replica"] == replica], mine, result, waits=waits)
    assert counts(events)["PREEMPT"] == result.summary["num_preemptions"]


def check_replica(events: Any, memory: Any, result: kvsim.Result, *, waits: bool) -> None:
    holders: dict[int, list[int]] = {}
    cached: set[int] = set()
    has_null = result.config.engine != "sglang"
    usable = result.summary["kv_cache"]["num_gpu_blocks"] - has_null
    bytes_per_block = result.summary["kv_cache"]["bytes"] // usable
    at, last = 0, len(events)
    seen: list[tuple[float, float]] = []
    kept = list(zip(memory["kv_usage"].tolist(), memory["cached"].tolist(), strict=True))
    for sample, wanted in zip(memory, kept, strict=True):
        passed = []
        while at < last and events["time"][at] <= sample["time"]:
            passed.append(now(holders, cached, usable, bytes_per_block))
            step(events[at], holders, cached)
            at += 1
        passed.append(now(holders, cached, usable, bytes_per_block))
        # A replica that waits for KV takes steps of no length, one that overlaps schedules twice
        # at once: a sample may lie between two.
        seen.append(wanted if waits and wanted in passed else passed[-1])
    assert np.array(seen) == pytest.approx(np.array(kept))
    for one in events[at:]:
        step(one, holders, cached)
    assert not any(holders.values())  # every block is freed as often as it is taken


def now(
    holders: dict[int, list[int]], cached: set[int], usable: int, size: int
) -> tuple[float, float]:
    """Return the share of blocks in use, and the bytes of free ones that can be hit."""
    used = sum(map(bool, holders.values()))
    return used / usable, sum(not holders.get(block) for block in cached) * size


def step(event: Any, holders: dict[int, list[int]], cached: set[int]) -> None:
    kind, block, request = int(event["kind"]), int(event["block"]), int(event["request"])
    if kind in TAKES:
        held = holders.setdefault(block, [])
        assert bool(held) <= (kind != BlockEvent.ALLOC)
        held.append(request)
    elif kind in DROPS:
        holders[block].remove(request)
        assert (kind == BlockEvent.FREE) == (not holders[block])
    elif kind == BlockEvent.STORE:
        cached.add(block)
    elif kind == BlockEvent.EVICT:
        cached.remove(block)


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_recording_changes_no_table_and_both_engines_record_the_same(name: str) -> None:
    options = {**SMALL, **CASES[name]}
    python = kvsim.simulate(shared(), **options)
    silent = kvsim.simulate(shared(), **{**options, "record_block_events": False})
    compiled = kvsim.simulate(shared(), **{**options, "backend": "compiled"})
    for table in ("requests", "memory", "token_gaps"):
        assert equal_tables(getattr(python, table), getattr(silent, table))
    assert not len(silent.block_events)
    assert equal_tables(python.block_events, compiled.block_events)
    assert python.summary == compiled.summary


@pytest.mark.parametrize(
    ("own", "size"),
    [
        ({"num_gpu_blocks_override": 300}, 16),
        pytest.param(
            *({"num_gpu_blocks_override": 300, "engine": "sglang", "block_size": 16}, 16),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *({"num_gpu_blocks_override": 4800, "engine": "sglang"}, 1), marks=pytest.mark.long
        ),
    ],
)
def test_hits_are_those_of_the_requests_table(own: dict[str, Any], size: int) -> None:
    result = kvsim.simulate(shared(), **SMALL, **own)
    events = result.block_events
    hits = events[events["kind"] == BlockEvent.HIT]
    assert result.summary["num_preemptions"] == 0
    found = np.bincount(hits["request"], minlength=40) * size
    assert found.tolist() == result.requests["num_cached_tokens"].tolist()
    assert found.sum() > 0


@pytest.mark.parametrize("size", [1, 16])
def test_the_tree_of_a_radix_cache_is_told_by_its_events(size: int) -> None:
    """Two prefixes of 64 tokens, each hit by all its requests but the first one, tails behind."""
    options = {**SMALL, "engine": "sglang", "num_gpu_blocks_override": 4800 // size}
    result = kvsim.simulate(shared(), **options, block_size=size)
    nodes = prefix_tree(result.block_events)
    roots = [node for node in nodes if node.parent == -1]
    assert [len(node.keys) * size for node in roots] == [64, 64]
    hits = result.block_events[result.block_events["kind"] == BlockEvent.HIT]
    assert sum(node.hits * len(node.keys) for node in nodes) == len(hits) > 0
    first = set(roots[0].keys) | set(roots[1].keys)
    assert set(hits["key"].tolist()) == first
    tails = [node for node in nodes if node.parent >= 0]
    # A prompt's tail and its output, but for the last token, whose KV is never computed.
    lengths = sorted(len(node.keys) * size for node in tails if not node.children)
    assert lengths == sorted((20 + k + 39) // size * size for k in range(40))


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiered", "native offloading"])
def test_copies_to_and_from_the_host_are_those_of_the_summary(name: str) -> None:
    trace = workloads.multi_turn(num_requests=60, request_rate=2.0, seed=1)
    options = {**SMALL, **CASES[name], "max_model_len": 2048, "num_gpu_blocks_override": 200}
    result = kvsim.simulate(trace, **options)
    cache, size = result.summary["kv_cache"], 16 * 131072
    told = counts(result.block_events)
    assert told["LOAD"] * size == cache["fetched_bytes"] > 0
    if name != "tiered":  # whose contents go when their block does
        assert told["COPY"] * size == cache["stored_bytes"] > 0
    runs = block_runs(result.block_events, result.summary["duration"])
    copied = runs[runs["state"] == BlockState.HOST_COPY]
    assert len(copied) > 0
    assert (copied["num_refs"] == 0).all()


@pytest.mark.long
@pytest.mark.parametrize("policy", ["write_through", "write_back"])
def test_what_a_radix_tree_leaves_to_the_host_is_evicted(policy: str) -> None:
    """Two prompts that take each other's room, by turns: a slot is unnamed when it is taken anew.

    What is loaded is named again. The room is for one of 900 tokens and half of another.
    """
    segments = [[(k % 2, 0, 900)] for k in range(6)]
    trace = kvsim.Trace.from_arrays(
        [5.0 * k for k in range(6)], [900] * 6, [2] * 6, segments=segments
    )
    own = {"engine": "sglang", "gpu": "h100-sxm", "max_total_tokens": 1400, "max_model_len": 1024}
    tier = {"enable_hierarchical_cache": True, "hicache_write_policy": policy}
    result = kvsim.simulate(trace, **{**SMALL, **own, **tier})
    assert result.summary["num_kv_loads"] > 0
    holders: dict[int, list[int]] = {}
    cached: set[int] = set()
    for event in result.block_events:
        assert event["kind"] != BlockEvent.ALLOC or event["block"] not in cached
        step(event, holders, cached)
    assert 900 <= len(cached) <= 1400
    # Since it was taken or loaded, and since it was hit: all but the last token of a prompt is.
    found = residency(result.block_events)
    assert len(found.ends) == (result.block_events["kind"] == BlockEvent.EVICT).sum()
    hits = result.block_events["kind"] == BlockEvent.HIT
    assert len(found.gaps) == 0 < hits.sum()
    assert (found.lives >= found.idles).all()
    assert found.lives.min() > 4


def test_a_block_is_a_copy_of_the_host_until_its_content_goes() -> None:
    kinds = [0, 12, 5, 4, 1, 4, 6, 0, 5, 4]  # taken, copied, named, freed, hit, freed, evicted, ...
    events = np.zeros(len(kinds), BLOCK_EVENTS)
    events["time"], events["kind"] = np.arange(len(kinds)), kinds
    events["block"], events["key"] = 1, 7
    states = block_runs(events, float(len(kinds)))[["start", "state"]].tolist()
    assert [(start, BlockState(state).name) for start, state in states] == [
        *((0.0, "RUNNING"), (1.0, "RUNNING"), (2.0, "RUNNING"), (3.0, "HOST_COPY")),
        *((4.0, "RUNNING"), (5.0, "HOST_COPY")),
        *((7.0, "RUNNING"), (8.0, "RUNNING"), (9.0, "CACHED_FREE")),
    ]


def test_memory_without_blocks_has_no_events_and_says_so() -> None:
    result = kvsim.simulate(shared(8), **{**SMALL, "allocator": "contiguous-max"})
    assert not len(result.block_events)
    assert any("it has no blocks" in note for note in result.provenance["notes"])


def test_a_full_record_ends_and_the_run_says_so() -> None:
    config = Config.build(**{**SMALL, "num_gpu_blocks_override": 60})
    whole = kvsim.simulate(shared(), **{**SMALL, "num_gpu_blocks_override": 60})
    recorder = BlockRecorder(most=100)
    setup = resolve_fleet(config.model_copy(update={"record_block_events": False}))
    cut = serve(setup, shared(), observer=recorder)
    assert len(recorder.table()) <= 100
    assert equal_tables(recorder.table(), whole.block_events[: len(recorder.table())])
    assert equal_tables(cut.requests, whole.requests)
    assert recorder.full_since is not None


def test_what_a_look_up_has_found_is_nobodys() -> None:
    """Replicas fail and find prefixes elsewhere: tables of nobody change their lengths."""
    trace = kvsim.Trace.from_arrays([0.0, 0.3], [7, 80], [27, 18])
    result = kvsim.simulate(
        trace,
        model="llama-3.1-8b",
        gpu="h100-sxm",
        cost_model="constant+seconds=0.02",
        num_prefill_workers=3,
        num_decode_workers=3,
        max_num_batched_tokens=16,
        failures="rate+gpu-hours=0.0001+policy=retry+detection=0+lease=0.2",
        kv_store="peer+pull=always",
        record_block_events=True,
    )
    assert result.summary["completed"] == 2
    assert result.summary["scaling"]["num_failures"] > 0


def test_residency_of_a_block_by_hand() -> None:
    rows = [
        (1.0, 0, BlockEvent.ALLOC, 0, 7, 0, 0),
        (1.0, 0, BlockEvent.STORE, -1, 7, -1, 9),
        (2.0, 0, BlockEvent.FREE, 0, 7, 0, 0),
        (3.0, 0, BlockEvent.HIT, 1, 7, 0, 9),
        (5.0, 0, BlockEvent.HIT, 2, 7, 0, 9),
        (6.0, 0, BlockEvent.REF_DROP, 1, 7, 0, 0),
        (6.0, 0, BlockEvent.FREE, 2, 7, 0, 0),
        (9.0, 0, BlockEvent.EVICT, -1, 7, -1, 9),
    ]
    found = residency(np.array(rows, dtype=BLOCK_EVENTS))
    assert [one.tolist() for one in found] == [[9.0], [8.0], [4.0], [2.0], [9.0]]


def test_who_computes_what_another_one_has_named_lets_go_of_its_own_pages() -> None:
    """Prompts of one batch that begin alike, too short to wait for each other."""
    segments = [[(1, 0, 20), (100 + k, 0, 30)] for k in range(8)]
    trace = kvsim.Trace.from_arrays(np.zeros(8), np.full(8, 50), np.full(8, 20), segments=segments)
    options = {**SMALL, "engine": "sglang", "num_gpu_blocks_override": 2000}
    result = kvsim.simulate(trace, **options)
    events = result.block_events
    check_replica(events, result.memory, result, waits=True)
    named = events[events["kind"] == BlockEvent.STORE]
    first = named["key"][:20]
    assert len(np.unique(named["key"])) == len(named)  # every content once
    again = events[(events["kind"] == BlockEvent.REF_ADD) & (events["place"] < 20)]
    assert len(again) == 7 * len(first)  # the seven others hold the first one's pages
