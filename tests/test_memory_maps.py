"""Memory maps show as much of each cause as the memory table counts, in both engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.kv.usage import Cause
from kvsim.trace import Trace

NAMES = {
    Cause.TOKEN_STATES: "token_states",
    Cause.RESERVATION: "reservation",
    Cause.INTERNAL: "internal",
    Cause.CACHED: "cached",
}


def gaps(trace: Trace, **options: Any) -> dict[str, float]:
    """Return how far the map is from the table at most, as shares of the pool, by cause."""
    python, compiled = (
        kvsim.simulate(
            trace,
            **options,
            record_memory_map=True,
            backend=backend,
            check_invariants=backend == "python",
        )
        for backend in ("python", "compiled")
    )
    assert (python.memory_map == compiled.memory_map).all()
    total = python.summary["kv_cache"]["bytes"]
    return {
        name: float(
            np.abs((python.memory_map == cause).mean(axis=1) - python.memory[name] / total).max()
        )
        for cause, name in NAMES.items()
    }


APART: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "num_prefill_workers": 1,
    "num_decode_workers": 1,
    "num_gpu_blocks_override": 65,
    "max_model_len": 1024,
    "kv_transfer_fabric": "tcp-ucx",
    "cost_model": "constant+seconds=0.01",
}


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["pull", "push"])
def test_blocks_for_a_transfer_are_reserved_and_shared_ones_live(protocol: str) -> None:
    """Two more prompts begin with the first one's 25 blocks, which it still holds."""
    trace = Trace.from_arrays(
        [0.0, 0.05, 0.3],
        [400, 401, 400],
        [300, 40, 5],
        segments=[[(1, 0, 400)], [(1, 0, 400), (3, 0, 1)], [(1, 0, 400)]],
    )
    assert max(gaps(trace, **APART, kv_transfer_protocol=protocol).values()) < 1e-9


def alike(number: int, num_beginnings: int, seed: int) -> Trace:
    """Prompts of which many begin alike."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(4, 30, number).tolist()
    own = rng.integers(1, 8, number).tolist()
    return Trace.from_arrays(
        np.sort(rng.uniform(0, 0.3, number)).round(2),
        [a + b for a, b in zip(shared, own, strict=True)],
        rng.integers(1, 16, number),
        segments=[
            [(k % num_beginnings, 0, a), (100 + k, 0, b)]
            for k, (a, b) in enumerate(zip(shared, own, strict=True))
        ],
    )


WINDOWS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "block_size": 4,
    "max_model_len": 64,
    "num_gpu_blocks_override": 65,
    "prefix_cache_retention_interval": None,
    "cost_model": "constant+seconds=0.02",
}


def test_a_block_that_windows_share_is_dead_where_it_is_so_for_all() -> None:
    """Windows of two tokens in blocks of four."""
    found = gaps(alike(24, 2, seed=0), **WINDOWS, allocator="paged+window=2")
    assert max(found.values()) < 1e-9


@pytest.mark.long
def test_nothing_is_dead_of_a_block_that_is_held_for_a_transfer_too() -> None:
    apart = {"num_prefill_workers": 1, "num_decode_workers": 1, "kv_transfer_fabric": "tcp-ucx"}
    found = gaps(alike(8, 1, seed=7), **WINDOWS, **apart, allocator="paged+window=9")
    assert max(found.values()) < 1e-9
