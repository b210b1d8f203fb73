"""Policies that evict leaves only: a block is evicted after its cached successors.

The leaf with the smallest rank is evicted; blocks of the current request are not. LFU ranks by the
number of uses since insertion, then by the last use. GDSF adds the worth of the block evicted last
to the number of uses (Cherkasova, Improving WWW proxies performance with Greedy-Dual-Size-Frequency
caching policy, HP Labs 1998; here all blocks have one size and one cost). The optimum evicts the
block with the farthest next use (Belady, A study of replacement algorithms for a virtual-storage
computer, IBM Systems Journal 1966). It does not insert a block if no cached leaf is used later than
that block.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.hits.rules.heap import Entry, add_entry, drop_first
from kvsim.hits.rules.requests import Requests, num_hits, tokens_of
from kvsim.records.record import NONE, Record, Short, Tiny
from kvsim.rules.eviction.shares import worth_of

LFU, OPTIMAL, GDSF = 0, 1, 2
NEVER = 2**31 - 1  # next use of a block that no later request uses


@dataclass(slots=True)
class Leaf(Record):
    """A block: its rank, uses since its insertion, cached children, parent, last request."""

    rank: int = 0
    uses: Short = 0
    children: Short = 0
    parent: Short = 0
    user: Short = 0


@dataclass(slots=True)
class Leaves(Record):
    """The state of a cache that evicts leaves.

    Attributes
    ----------
    is_cached : a flag per block
    blocks : the state of each block
    heap : ranks of leaves
    coming : the next request that uses a block, while requests are read backwards
    next_use : the same for each entry of the requests' paths
    policy : LFU, OPTIMAL or GDSF
    """

    is_cached: list[Tiny] = field(default_factory=list)
    blocks: list[Leaf] = field(default_factory=list)
    heap: list[Entry] = field(default_factory=list)
    coming: list[Short] = field(default_factory=list)
    next_use: list[Short] = field(default_factory=list)
    policy: int = LFU


def find_next_uses(requests: Requests, leaves: Leaves) -> int:
    """Find, for each entry of the paths, the next request that uses the entry's block."""
    for i in range(requests.number - 1, -1, -1):
        for at in range(requests.offsets[i], requests.offsets[i + 1]):
            block = requests.paths[at]
            leaves.next_use[at] = leaves.coming[block]
            leaves.coming[block] = i
    return 0


def use(leaves: Leaves, block: int, i: int, next_use: int, age: int) -> None:
    """Update the rank of a cached block that request i uses; ``age`` is 0 except under GDSF."""
    leaf = leaves.blocks[block]
    leaf.user = i
    leaf.uses += 1
    if leaves.policy != OPTIMAL:
        leaf.rank = (worth_of(age, leaf.uses) << 32) + i
    else:
        leaf.rank = NEVER - next_use


def without_stale(leaves: Leaves, length: int) -> int:
    """Drop stale entries until the first one is valid; return the number of entries left.

    An entry is stale if its block is no cached leaf, or has a new rank.
    """
    while length > 0:
        first = leaves.heap[0]
        leaf = leaves.blocks[first.block]
        if leaves.is_cached[first.block] and leaf.children == 0 and leaf.rank == first.rank:
            break
        length = drop_first(leaves.heap, length)
    return length


def remove_first(leaves: Leaves, length: int, i: int) -> int:
    """Evict the first leaf; its parent may become one. Return the number of entries."""
    victim, heap = leaves.heap[0].block, leaves.heap
    length = drop_first(heap, length)
    leaves.is_cached[victim] = 0
    parent = leaves.blocks[victim].parent
    if parent != NONE:
        above = leaves.blocks[parent]
        above.children -= 1
        if above.children == 0 and above.user != i:
            length = add_entry(heap, length, above.rank, parent)
    return length


def leaf_hits(requests: Requests, leaves: Leaves, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks; see :func:`find_next_uses`."""
    is_cached, blocks, heap, policy = leaves.is_cached, leaves.blocks, leaves.heap, leaves.policy
    length, num_cached, total, age = 0, 0, 0, 0
    for block in range(requests.num_nodes):
        is_cached[block] = 0
    for i in range(requests.number):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        at, stop, tail = requests.offsets[i], requests.offsets[i + 1], NONE
        while at < stop and is_cached[requests.paths[at]]:
            tail = requests.paths[at]
            use(leaves, tail, i, leaves.next_use[at], age)
            at += 1
        for place in range(at, stop):
            next_use = leaves.next_use[place]
            if num_cached == size:
                length = without_stale(leaves, length)
                if length == 0 or (policy == OPTIMAL and heap[0].rank >= NEVER - next_use):
                    break
                age = heap[0].rank >> 32 if policy == GDSF else 0
                length = remove_first(leaves, length, i)
                num_cached -= 1
            block = requests.paths[place]
            is_cached[block] = 1
            num_cached += 1
            leaf = blocks[block]
            leaf.uses, leaf.children, leaf.parent = 0, 0, tail
            if tail != NONE:
                blocks[tail].children += 1
            use(leaves, block, i, next_use, age)
            tail = block
        if tail != NONE and blocks[tail].children == 0:
            length = add_entry(heap, length, blocks[tail].rank, tail)
    return total
