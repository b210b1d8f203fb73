"""S3-FIFO: with a small queue, blocks used once do not displace reused ones.

A new block joins the small queue, a tenth of the cache. The oldest block there moves to the main
queue if it has been used again; else it is evicted, and its number is kept as a ghost. A block
with a ghost joins the main queue at once. Up to three uses of a block are counted: the oldest block
of the main queue is evicted if its count is 0, else it is appended again and its count drops by one
(Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, section 4). Blocks of the
current request are not evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.hits.rules.queues import (
    NEWER,
    NOBODY,
    USER,
    USES,
    append,
    empty_queues,
    unlink,
    use_cached,
)
from kvsim.hits.rules.requests import num_hits, tokens_of

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Flags, Ints, Requests, Shorts

SMALL, MAIN, GHOST = 0, 1, 2  # queues: indices of their lengths, and of their ends after the blocks
CURSOR = 3  # index of the first of two cursors: the next blocks to evict in SMALL and MAIN
SMALL_SHARE = 10  # size of the cache over that of the small queue
MAX_USES = 3  # highest count of uses


def move(links: Shorts, lengths: Ints, block: int, source: int, target: int) -> None:
    """Move a block to the newest end of a queue, which may be its own."""
    unlink(links, block)
    append(links, len(links) - 3 + target, block)
    lengths[source] -= 1
    lengths[target] += 1


def evict_small(links: Shorts, lengths: Ints, i: int) -> int:
    """Make the oldest unused block of the small queue a ghost; return it, or ``NOBODY``."""
    while lengths[CURSOR + SMALL] < len(links) - 3:
        block = lengths[CURSOR + SMALL]
        lengths[CURSOR + SMALL] = links[block, NEWER]
        if links[block, USER] == i:
            continue
        if links[block, USES] == 0:
            move(links, lengths, block, SMALL, GHOST)
            return int(block)
        move(links, lengths, block, SMALL, MAIN)
    return NOBODY


def evict_main(links: Shorts, lengths: Ints, i: int) -> int:
    """Remove the oldest unused block of the main queue; return it, or ``NOBODY``."""
    num_passed = 0  # consecutive blocks of this request
    while num_passed <= lengths[MAIN]:
        block = lengths[CURSOR + MAIN]
        lengths[CURSOR + MAIN] = links[block, NEWER]
        if block >= len(links) - 3 or links[block, USER] == i:
            num_passed += 1
            continue
        if links[block, USES] == 0:
            unlink(links, block)
            lengths[MAIN] -= 1
            return int(block)
        links[block, USES] -= 1
        move(links, lengths, block, MAIN, MAIN)
        num_passed = 0
    return NOBODY


def evict(links: Shorts, lengths: Ints, is_ghost: Flags, i: int, num_small: int) -> int:
    """Remove and return a block that request i does not use; there must be one."""
    victim = NOBODY
    if lengths[SMALL] < num_small:
        victim = evict_main(links, lengths, i)
    while victim == NOBODY:
        victim = evict_small(links, lengths, i)
        if victim != NOBODY:
            is_ghost[victim] = 1
        else:
            victim = evict_main(links, lengths, i)
    return victim


def drop_ghosts(links: Shorts, lengths: Ints, is_ghost: Flags, most: int) -> None:
    """Drop the oldest ghosts, down to ``most`` ghosts."""
    while lengths[GHOST] > most:
        ghost = links[len(links) - 3 + GHOST, NEWER]
        unlink(links, ghost)
        is_ghost[ghost] = 0
        lengths[GHOST] -= 1


def insert(links: Shorts, lengths: Ints, is_ghost: Flags, block: int, i: int) -> None:
    """Append a block of request i to its queue."""
    if is_ghost[block]:
        is_ghost[block] = 0
        move(links, lengths, block, GHOST, MAIN)
    else:
        append(links, len(links) - 3 + SMALL, block)
        lengths[SMALL] += 1
    links[block, USER], links[block, USES] = i, 0


def s3fifo_hits(requests: Requests, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    paths, offsets, num_nodes = requests[0], requests[1], requests[4][1]
    is_cached, is_ghost = np.zeros(num_nodes, np.uint8), np.zeros(num_nodes, np.uint8)
    links, lengths = empty_queues(num_nodes, 3), np.zeros(5, np.int64)
    num_small, total = max(1, size // SMALL_SHARE), 0
    for i in range(len(offsets) - 1):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        num_own = use_cached(requests, i, is_cached, links, MAX_USES)
        lengths[CURSOR + SMALL] = links[num_nodes + SMALL, NEWER]
        lengths[CURSOR + MAIN] = num_nodes + MAIN
        for at in range(offsets[i], offsets[i + 1]):
            block = paths[at]
            if is_cached[block]:
                continue
            if num_own == size:
                break
            if lengths[SMALL] + lengths[MAIN] == size:
                is_cached[evict(links, lengths, is_ghost, i, num_small)] = 0
                drop_ghosts(links, lengths, is_ghost, size - num_small)
            insert(links, lengths, is_ghost, block, i)
            is_cached[block] = 1
            num_own += 1
    return total
