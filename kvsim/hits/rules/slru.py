"""Segmented LRU: a block used once cannot evict one that was used again.

A new block joins the probationary segment; when it is used again, it joins the protected segment,
at most four fifths of the cache. The oldest blocks beyond that limit return to the newest end of
the probationary segment. The victim is the oldest block of that segment (Karedla, Love and Wherry,
Caching strategies to improve disk system performance, IEEE Computer 1994). Blocks of the current
request are not evicted; of two blocks of one request, the one nearer to the root is newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.hits.rules.queues import NEWER, NOBODY, USER, append, empty_queues, unlink
from kvsim.hits.rules.requests import num_hits, tokens_of
from kvsim.rules.eviction.shares import most_protected

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Flags, Ints, Requests, Shorts

PROBATION, PROTECTED = 0, 1  # queues; ``segment`` holds a block's queue plus 1, or 0


def oldest_unused(links: Shorts, end: int, i: int) -> int:
    """Return the oldest block of a queue that request i does not use, or ``NOBODY``."""
    block = links[end, NEWER]
    while block != end:
        if links[block, USER] != i:
            return int(block)
        block = links[block, NEWER]
    return NOBODY


def promote(links: Shorts, lengths: Ints, segment: Flags, block: int, target: int) -> None:
    """Move a cached block to the newest end of a segment."""
    unlink(links, block)
    lengths[segment[block] - 1] -= 1
    append(links, len(links) - 2 + target, block)
    lengths[target] += 1
    segment[block] = target + 1


def slru_hits(requests: Requests, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    paths, offsets, num_nodes = requests[0], requests[1], requests[4][1]
    segment, links = np.zeros(num_nodes, np.uint8), empty_queues(num_nodes, 2)
    lengths, total = np.zeros(2, np.int64), 0
    most = most_protected(size)
    for i in range(len(offsets) - 1):
        total += tokens_of(requests, i, num_hits(requests, i, segment))
        num_own = 0
        for at in range(offsets[i + 1] - 1, offsets[i] - 1, -1):
            if segment[paths[at]]:
                links[paths[at], USER] = i
                promote(links, lengths, segment, paths[at], PROTECTED)
                num_own += 1
        while lengths[PROTECTED] > most:
            oldest = links[num_nodes + PROTECTED, NEWER]
            promote(links, lengths, segment, oldest, PROBATION)
        for at in range(offsets[i], offsets[i + 1]):
            block = paths[at]
            if segment[block]:
                continue
            if num_own == size:
                break
            if lengths[PROBATION] + lengths[PROTECTED] == size:
                victim = oldest_unused(links, num_nodes + PROBATION, i)
                if victim == NOBODY:
                    victim = oldest_unused(links, num_nodes + PROTECTED, i)
                unlink(links, victim)
                lengths[segment[victim] - 1] -= 1
                segment[victim] = 0
            append(links, num_nodes + PROBATION, block)
            lengths[PROBATION] += 1
            links[block, USER], segment[block] = i, PROBATION + 1
            num_own += 1
        for at in range(offsets[i + 1] - 1, offsets[i] - 1, -1):
            if segment[paths[at]]:
                promote(links, lengths, segment, paths[at], int(segment[paths[at]]) - 1)
    return total
