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

from typing import TYPE_CHECKING

import numpy as np

from kvsim.hits.rules.heap import drop_first, with_entry
from kvsim.hits.rules.requests import num_hits, tokens_of
from kvsim.rules.eviction.shares import worth_of

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Flags, Ints, Requests, Shorts

LFU, OPTIMAL, GDSF = 0, 1, 2
NO_BLOCK = -1
NEVER = 2**31 - 1  # next use of a block that no later request uses
RANK, USES, CHILDREN, PARENT, USER = 0, 1, 2, 3, 4  # columns of the state of a block


def next_uses(requests: Requests) -> Shorts:
    """Return, for each entry of the paths, the next request that uses the entry's block."""
    paths, offsets = requests[0], requests[1]
    found = np.empty(len(paths), np.int32)
    coming = np.full(requests[4][1], NEVER, np.int32)
    for i in range(len(offsets) - 2, -1, -1):
        for at in range(offsets[i], offsets[i + 1]):
            found[at] = coming[paths[at]]
            coming[paths[at]] = i
    return found


def use(state: Ints, block: int, i: int, policy: int, next_use: int, age: int) -> None:
    """Update the rank of a cached block that request i uses; ``age`` is 0 except under GDSF."""
    state[block, USER] = i
    state[block, USES] += 1
    if policy != OPTIMAL:
        state[block, RANK] = (worth_of(age, state[block, USES]) << 32) + i
    else:
        state[block, RANK] = NEVER - next_use


def without_stale(heap: Ints, length: int, state: Ints, is_cached: Flags) -> int:
    """Drop stale entries until the first one is valid; return the number of entries left.

    An entry is stale if its block is no cached leaf, or has a new rank.
    """
    while length > 0:
        rank, block = heap[0, 0], heap[0, 1]
        if is_cached[block] and state[block, CHILDREN] == 0 and state[block, RANK] == rank:
            break
        length = drop_first(heap, length)
    return length


def leaf_hits(requests: Requests, size: int, policy: int, next_use: Shorts) -> int:
    """Return the hit tokens of a cache of ``size`` blocks; see :func:`next_uses`."""
    paths, offsets, num_nodes = requests[0], requests[1], requests[4][1]
    is_cached = np.zeros(num_nodes, np.uint8)
    state = np.zeros((num_nodes, 5), np.int64)
    heap, length, num_cached, total = np.empty((1024, 2), np.int64), 0, 0, 0
    age = 0
    for i in range(len(offsets) - 1):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        at, stop, tail = offsets[i], offsets[i + 1], NO_BLOCK
        while at < stop and is_cached[paths[at]]:
            tail = paths[at]
            use(state, tail, i, policy, next_use[at], age)
            at += 1
        for place in range(at, stop):
            if num_cached == size:
                length = without_stale(heap, length, state, is_cached)
                if length == 0 or (policy == OPTIMAL and heap[0, 0] >= NEVER - next_use[place]):
                    break
                victim = heap[0, 1]
                age = heap[0, 0] >> 32 if policy == GDSF else 0
                length = drop_first(heap, length)
                is_cached[victim] = 0
                num_cached -= 1
                parent = state[victim, PARENT]
                if parent != NO_BLOCK:
                    state[parent, CHILDREN] -= 1
                    if state[parent, CHILDREN] == 0 and state[parent, USER] != i:
                        heap = with_entry(heap, length, state[parent, RANK], parent)
                        length += 1
            block = paths[place]
            is_cached[block] = 1
            num_cached += 1
            state[block, USES], state[block, CHILDREN], state[block, PARENT] = 0, 0, tail
            if tail != NO_BLOCK:
                state[tail, CHILDREN] += 1
            use(state, block, i, policy, next_use[place], age)
            tail = block
        if tail != NO_BLOCK and state[tail, CHILDREN] == 0:
            heap = with_entry(heap, length, state[tail, RANK], tail)
            length += 1
    return total
