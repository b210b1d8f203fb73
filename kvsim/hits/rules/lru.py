"""LRU at all sizes in one pass.

Blocks are ordered by the last request that used them; among blocks of one request, those nearer to
the root are newer. An ancestor is then never older than its descendants: the oldest block is a
leaf, and a cache of C blocks holds the C newest (Mattson et al., Evaluation techniques for storage
hierarchies, IBM Systems Journal 1970). The distance of a block is the number of newer blocks, plus
one; the block hits in every cache of at least this number of blocks. Along a path distances never
fall, and blocks that one request used last have consecutive distances.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Ints, Requests

NEVER = -1


def add_until(tree: Ints, at: int, change: int) -> None:
    """Add ``change`` to an entry of a Fenwick tree."""
    at += 1
    while at <= len(tree):
        tree[at - 1] += change
        at += at & -at


def sum_until(tree: Ints, stop: int) -> int:
    """Return the sum of the entries before ``stop``."""
    total = 0
    while stop > 0:
        total += tree[stop - 1]
        stop -= stop & -stop
    return total


def lru_hits(requests: Requests, num_blocks: int) -> Ints:
    """Return the hit tokens at every cache size from 0 to ``num_blocks``."""
    paths, offsets, num_lookups, num_tokens, (block_size, num_nodes, first_measured) = requests
    slope = np.zeros(num_blocks + 2, np.int64)  # second differences of the hit tokens by size
    step = np.zeros(num_blocks + 2, np.int64)  # first differences, in addition
    last = np.full(num_nodes, NEVER, np.int32)  # last request that used the block
    used = np.zeros(len(num_tokens), np.int64)  # Fenwick tree: blocks by the last request
    num_used = 0
    for i in range(len(num_tokens)):
        at, stop = offsets[i], offsets[i + 1]
        looked_up = at + num_lookups[i]
        while at < stop:
            begin, user = at, last[paths[at]]
            while at < stop and last[paths[at]] == user:
                last[paths[at]] = i
                at += 1
            if user == NEVER:
                num_used += at - begin
                continue
            hits = min(at, looked_up) - begin
            if i >= first_measured and hits > 0:
                distance = num_used - sum_until(used, user + 1) + 1
                slope[distance] += block_size
                slope[distance + hits] -= block_size
                surplus = (begin + hits - offsets[i]) * block_size - num_tokens[i]
                step[distance + hits - 1] -= max(surplus, 0)
            add_until(used, user, begin - at)
        add_until(used, i, stop - offsets[i])
    by_size: Ints = (step + slope.cumsum())[: num_blocks + 1].cumsum()
    return by_size
