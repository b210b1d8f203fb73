"""Hypothesis strategies: random traces and configurations, small enough to run hundreds of.

Names come from the registries, and whether a part takes an option is asked of kvsim itself, so a
new part is drawn without an edit here.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

import kvsim
from kvsim.fleet.routing.router import ROUTERS
from kvsim.kv.manager import ALLOCATORS as ALLOCATOR_REGISTRY
from kvsim.sched.scheduler import SCHEDULERS as SCHEDULER_REGISTRY
from kvsim.trace import Trace
from kvsim.trace.items import read_items

#: Allocators with the parameters that small pools want, or that change what they do.
VARIANTS = (
    "paged",
    "paged+block-size=4",
    "paged+window=13",
    "paged+int8",
    "contiguous-max",
    "contiguous-pow2",
    "contiguous-oracle",
    "contiguous-max+fit=first",
    "contiguous-pow2+fit=best",
    "contiguous-oracle+fit=first",
    "contiguous-oracle+fit=best+window=9",
    "tiered+host-gib=0.01",
    "unified+host-gib=0.002",
    "dynamic",
    "dynamic+layers=4+window=9",
    "virtual+page-size=64KiB",
    "virtual+page-size=64KiB+window=13+mqa",
)
#: Those that go with any scheduler; a pair that needs each other has tests of its own.
FREE_ALLOCATORS = tuple(
    name
    for name in ALLOCATOR_REGISTRY.names()
    if not getattr(ALLOCATOR_REGISTRY.get(name), "needs_scheduler", None)
)
#: An allocator without a variant is drawn as it is.
ALLOCATORS = (
    *VARIANTS,
    *sorted(set(FREE_ALLOCATORS) - {name.split("+")[0] for name in VARIANTS}),
)
SCHEDULERS = tuple(
    name
    for name in SCHEDULER_REGISTRY.names()
    if not getattr(SCHEDULER_REGISTRY.get(name), "needs_allocator", None)
)


def examples(count: int, **options: Any) -> settings:
    """Run so many examples in the profile ``ci``; the others scale it (see ``conftest``)."""
    return settings(max_examples=max(1, count * settings().max_examples // 100), **options)


@cache
def takes(**options: Any) -> bool:
    """Whether kvsim serves a request under these options, or refuses them."""
    small = {"model": "llama-3-8b", "gpu": "h100-sxm", "num_gpu_blocks_override": 60}
    one = Trace.from_arrays([0.0], [3], [2])
    try:
        kvsim.simulate(one, **small | {"max_model_len": 64} | options)
    except ValueError:
        return False
    return True


#: Of which one is chosen, by what they have cached.
TWO_REPLICAS = {"data_parallel_size": 2, "enable_prefix_caching": True}


@cache
def models_of(allocator: str) -> list[str]:
    """A model with one kind of layers and one with two, where the allocator serves it."""
    return [m for m in ("llama-3-8b", "gpt-oss-20b") if takes(model=m, allocator=allocator)]


@st.composite
def traces(draw: st.DrawFn, max_requests: int = 12) -> Trace:
    """Few requests, short, often sharing content, often arriving together."""
    n = draw(st.integers(1, max_requests))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.0, 0.005, 0.03, 1.0]), min_size=n, max_size=n))
    arrival, now = [], 0.0
    for gap in gaps:
        now += gap
        arrival.append(now)
    segments = []
    for i in range(n):
        shared = draw(st.integers(0, 30))
        own = draw(st.integers(0 if shared else 1, 30))
        pieces = [(draw(st.integers(0, 2)), 0, shared)] if shared else []
        if own:
            # Sometimes another request's output comes back as history.
            history = draw(st.booleans())
            content = 1000 + draw(st.integers(0, n - 1)) if history else 100 + i
            pieces.append((content, 0, own))
        segments.append(pieces)
    prompt = [sum(length for _, _, length in pieces) for pieces in segments]
    output = draw(st.lists(st.integers(1, 25), min_size=n, max_size=n))
    return Trace.from_arrays(
        arrival,
        prompt,
        output,
        segments=segments,
        output_content_id=[1000 + i for i in range(n)],
        priority=draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
        cache_salt=draw(st.lists(st.sampled_from([0, 0, 0, 7]), min_size=n, max_size=n)),
        tenant=draw(st.lists(st.sampled_from([-1, 3, 3, 5, 8]), min_size=n, max_size=n)),
    )


@cache
def routers_of(allocator: str) -> list[str]:
    """The routers that find out what a replica under this allocator keeps, or need not."""
    return [r for r in ROUTERS.names() if takes(allocator=allocator, router=r, **TWO_REPLICAS)]


def with_seldom(trace: Trace, *, adapters: bool) -> Trace:
    """Give requests what few have: adapters, grammars, an acceptance of their own."""
    rows = np.arange(len(trace))
    given = (rows * 7919 + int(trace.num_prompt_tokens.sum())) % 11
    recorded = [[int(k) % 4, 1] if k > 7 else [] for k in given]
    return replace(
        trace,
        lora_id=np.where(given < 6, given % 4, 0) if adapters else trace.lora_id,
        grammar_time=np.where(given % 3 == 1, given * 0.01, -1.0),
        acceptance_rate=np.where(given < 3, given / 3, -1.0),
        accept_offsets=np.cumsum([0, *map(len, recorded)]),
        accepted_drafts=np.array([c for counts in recorded for c in counts], np.int64),
    )


def with_items(trace: Trace) -> Trace:
    """Give prompts parts that an encoder computes: the middle of most of their segments."""
    items = []
    for row in range(len(trace)):
        first, own = 0, []
        for _, _, length in trace.segments_of(row):
            if (row + length) % 4:
                own.append((first + length // 4, -(-length // 2)))
            first += length
        items.append(own)
    offsets, start, length = read_items(items, len(trace))
    return replace(trace, item_offsets=offsets, item_start=start, item_num_tokens=length)


def policies_of(scheduler: str) -> list[str]:
    """The orders of service that a scheduler knows."""
    fair = takes(scheduler=scheduler, scheduling_policy="vtc")
    return ["fcfs", "priority", *(["vtc", "dlpm"] if fair else [])]


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """Options of a deployment under memory pressure, pools of one block included."""
    scheduler = draw(st.sampled_from(SCHEDULERS))
    max_num_seqs = draw(st.integers(1, 6))
    allocator = draw(st.sampled_from(ALLOCATORS))
    options: dict[str, Any] = {
        "model": draw(st.sampled_from(models_of(allocator))),
        "gpu": "h100-sxm",
        "allocator": allocator,
        "scheduler": scheduler,
        "num_gpu_blocks_override": draw(st.one_of(st.integers(1, 12), st.integers(13, 60))),
        "block_size": draw(st.sampled_from([1, 4, 16])),
        "max_model_len": draw(st.sampled_from([16, 40, 64, 256])),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": draw(st.sampled_from([max_num_seqs, 16, 300])),
        "scheduling_policy": draw(st.sampled_from(policies_of(scheduler))),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.2])),
        "data_parallel_size": draw(st.sampled_from([1, 1, 2])),
        "router": draw(st.sampled_from(routers_of(allocator))),
        "max_concurrency": draw(st.sampled_from([None, None, 1, 3])),
        "pipeline_parallel_size": draw(st.sampled_from([1, 1, 2])),
        "num_lookahead_tokens": draw(st.sampled_from([0, 0, 3])),
    }
    options["max_num_batched_tokens"] = max(options["max_num_batched_tokens"], max_num_seqs)
    if not takes(scheduler=scheduler, max_num_batched_tokens=16, max_num_seqs=4):
        del options["max_num_batched_tokens"]  # it computes whole prompts
    if not takes(scheduler=scheduler, pipeline_parallel_size=2):
        options["pipeline_parallel_size"] = 1
    if takes(scheduler=scheduler, enable_prefix_caching=True):
        options["enable_prefix_caching"] = draw(st.booleans())
    if takes(scheduler=scheduler, async_scheduling=True):
        options["long_prefill_token_threshold"] = draw(st.sampled_from([0, 0, 5]))
        options["scheduler_reserve_full_isl"] = draw(st.booleans())
        if options["pipeline_parallel_size"] == 1:
            options["async_scheduling"] = draw(st.booleans())
    if takes(scheduler=scheduler, preemption_mode="swap"):
        options["preemption_mode"] = draw(st.sampled_from(["recompute", "swap"]))
        options["swap_space"] = draw(st.sampled_from([0.0, 1e-3, 4.0]))
    return options


@st.composite
def under_pressure(draw: st.DrawFn, allocators: list[str]) -> tuple[Trace, dict[str, Any]]:
    """Long requests of a small model in megabytes of memory, for managers with coarse pieces."""
    n = draw(st.integers(1, 7))
    lengths = st.lists(st.integers(1, 300), min_size=n, max_size=n)
    trace = Trace.from_arrays(
        sorted(draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.2]), min_size=n, max_size=n))),
        draw(lengths),
        draw(st.lists(st.integers(1, 90), min_size=n, max_size=n)),
        priority=draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
    )
    scheduler = draw(st.sampled_from(SCHEDULERS))
    options: dict[str, Any] = {
        "model": "gpt2",
        "gpu": "l4",
        "allocator": draw(st.sampled_from(allocators)),
        "scheduler": scheduler,
        "kv_cache_memory_bytes": draw(st.integers(4, 50)) << 20,
        "max_model_len": 512,
        "scheduling_policy": draw(st.sampled_from(["fcfs", "priority"])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.1])),
        "max_num_seqs": draw(st.sampled_from([2, 16])),
    }
    if takes(scheduler=scheduler, async_scheduling=True):
        options["max_num_batched_tokens"] = draw(st.sampled_from([16, 64, 512]))
        options["async_scheduling"] = draw(st.booleans())
        options["scheduler_reserve_full_isl"] = draw(st.booleans())
    elif takes(scheduler=scheduler, pipeline_parallel_size=2):
        options["pipeline_parallel_size"] = draw(st.sampled_from([1, 2]))
    if takes(scheduler=scheduler, preemption_mode="swap"):
        options["preemption_mode"] = draw(st.sampled_from(["recompute", "swap"]))
        options["swap_space"] = draw(st.sampled_from([0.0, 1e-3, 4.0]))
    return trace, options


#: Tokens of llama-3-8b that a coarse piece of an allocator holds: a page of one tensor, or, of
#: contiguous memory, what rounding to a power of two may add.
COARSE = {
    "virtual": 1024,
    "virtual+page-size=256KiB": 128,
    "virtual+page-size=64KiB": 32,
    "virtual+page-size=64KiB+window=50": 32,
    "contiguous-pow2": 256,
    "contiguous-pow2+fit=best": 256,
    "contiguous-oracle+fit=first": 256,
}


@st.composite
def of_several_pieces(draw: st.DrawFn) -> tuple[Trace, dict[str, Any]]:
    """Requests of up to five coarse pieces, the first of at least two, in memory for a few."""
    allocator = draw(st.sampled_from(sorted(COARSE)))
    piece = COARSE[allocator]
    n = draw(st.integers(1, 5))
    others = st.lists(st.integers(1, 4 * piece), min_size=n - 1, max_size=n - 1)
    trace = Trace.from_arrays(
        sorted(draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.2]), min_size=n, max_size=n))),
        [draw(st.integers(piece + 1, 4 * piece)), *draw(others)],
        draw(st.lists(st.integers(1, 40), min_size=n, max_size=n)),
    )
    scheduler = draw(st.sampled_from(SCHEDULERS))
    options: dict[str, Any] = {
        "model": "llama-3-8b",
        "gpu": "h100-sxm",
        "allocator": allocator,
        "scheduler": scheduler,
        "kv_cache_memory_bytes": draw(st.integers(8, 14)) * piece * 131_072,
        "max_model_len": 4 * piece + 40,
    }
    if takes(scheduler=scheduler, async_scheduling=True):
        options["max_num_batched_tokens"] = draw(st.sampled_from([300, 2048]))
        options["async_scheduling"] = draw(st.booleans())
    if takes(scheduler=scheduler, preemption_mode="swap"):
        options["preemption_mode"] = draw(st.sampled_from(["recompute", "swap"]))
    return trace, options
