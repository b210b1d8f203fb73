"""The cache policies by name, as functions from a size to hit tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import unknown_name
from kvsim.hits.backend import flags
from kvsim.hits.rules.arc import arc_hits
from kvsim.hits.rules.fifo import fifo_hits
from kvsim.hits.rules.heap import Entry
from kvsim.hits.rules.leaves import (
    GDSF,
    LFU,
    NEVER,
    OPTIMAL,
    Leaf,
    Leaves,
    find_next_uses,
    leaf_hits,
)
from kvsim.hits.rules.lru import Distances, lru_hits
from kvsim.hits.rules.queues import NUM_COUNTERS, Link, Queues
from kvsim.hits.rules.s3fifo import s3fifo_hits
from kvsim.hits.rules.sieve import sieve_hits
from kvsim.hits.rules.slru import slru_hits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from kvsim.hits.backend import Backend
    from kvsim.hits.paths import Paths

#: All policies, in the order of their columns.
POLICIES = ("lru", "fifo", "lfu", "slru", "arc", "gdsf", "s3fifo", "sieve", "optimal")
#: Policies that are drawn by default.
USUAL = ("lru", "fifo", "lfu", "s3fifo", "sieve", "optimal")
#: Policies with queues: their rules.
QUEUES = {
    "fifo": fifo_hits,
    "slru": slru_hits,
    "arc": arc_hits,
    "s3fifo": s3fifo_hits,
    "sieve": sieve_hits,
}
#: Policies that evict leaves: their numbers.
LEAVES = {"lfu": LFU, "gdsf": GDSF, "optimal": OPTIMAL}


def check_policies(policies: Sequence[str]) -> tuple[str, ...]:
    """Return the names, each once, or refuse an unknown one."""
    for name in policies:
        if name not in POLICIES:
            raise unknown_name("policy", name, POLICIES)
    if not policies:
        raise ValueError(f"policies: at least one of {', '.join(POLICIES)}")
    return tuple(dict.fromkeys(policies))


def lru_at_all_sizes(paths: Paths, backend: Backend) -> NDArray[Any]:
    """Return LRU's hit tokens at every size from 0 to the number of different blocks."""
    memory, requests, most = backend.memory(), paths.requests, paths.num_blocks
    found, hits = memory.one(Distances), np.zeros(most + 1, np.int64)
    found.slope, found.step = memory.ints(most + 2), memory.ints(most + 2)
    found.hits, found.num_blocks = memory.list_of(hits), most
    found.last, found.used = memory.shorts(requests.num_nodes), memory.ints(requests.number)
    backend.rule(lru_hits)(requests, found)
    return hits


def simulation(name: str, paths: Paths, backend: Backend) -> Callable[[int], int]:
    """Return a function from a size in blocks to the hit tokens of a policy other than LRU.

    A policy's memory is made once: new memory costs more time than the simulation of a small trace.
    """
    memory, requests, num_nodes = backend.memory(), paths.requests, paths.requests.num_nodes
    if name in QUEUES:
        queues = memory.one(Queues)
        queues.is_cached, queues.place = flags(memory, num_nodes), flags(memory, num_nodes)
        queues.links = memory.records(Link, num_nodes + NUM_COUNTERS)
        queues.lengths = memory.ints(NUM_COUNTERS)
        return partial(backend.rule(QUEUES[name]), requests, queues)
    leaves = memory.one(Leaves)
    leaves.is_cached, leaves.policy = flags(memory, num_nodes), LEAVES[name]
    leaves.blocks = memory.records(Leaf, num_nodes)
    leaves.heap = memory.room(Entry, paths.num_references + requests.number + 1)
    leaves.coming = memory.shorts(num_nodes, NEVER)
    leaves.next_use = memory.shorts(paths.num_references)
    backend.rule(find_next_uses)(requests, leaves)
    return partial(backend.rule(leaf_hits), requests, leaves)
