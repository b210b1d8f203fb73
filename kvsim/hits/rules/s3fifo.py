"""S3-FIFO: with a small queue, blocks used once do not displace reused ones.

A new block joins the small queue, a tenth of the cache. The oldest block there moves to the main
queue if it has been used again; else it is evicted, and its number is kept as a ghost. A block
with a ghost joins the main queue at once. Up to three uses of a block are counted: the oldest block
of the main queue is evicted if its count is 0, else it is appended again and its count drops by one
(Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, section 4). Blocks of the
current request are not evicted.
"""

from __future__ import annotations

from kvsim.hits.rules.queues import Queues, append, clear, unlink, use_cached
from kvsim.hits.rules.requests import Requests, num_hits, tokens_of
from kvsim.records.record import NONE

SMALL, MAIN, GHOST = 0, 1, 2  # queues: indices of their lengths, and of their ends after the blocks
CURSOR = 3  # index of the first of two cursors: the next blocks to evict in SMALL and MAIN
SMALL_SHARE = 10  # size of the cache over that of the small queue
MAX_USES = 3  # highest count of uses


def move(queues: Queues, block: int, source: int, target: int) -> None:
    """Move a block to the newest end of a queue, which may be its own."""
    unlink(queues.links, block)
    append(queues.links, queues.end + target, block)
    queues.lengths[source] -= 1
    queues.lengths[target] += 1


def evict_small(queues: Queues, i: int) -> int:
    """Make the oldest unused block of the small queue a ghost; return it, or ``NONE``."""
    lengths = queues.lengths
    while lengths[CURSOR + SMALL] < queues.end:
        block = lengths[CURSOR + SMALL]
        link = queues.links[block]
        lengths[CURSOR + SMALL] = link.newer
        if link.user == i:
            continue
        if link.uses == 0:
            move(queues, block, SMALL, GHOST)
            return block
        move(queues, block, SMALL, MAIN)
    return NONE


def evict_main(queues: Queues, i: int) -> int:
    """Remove the oldest unused block of the main queue; return it, or ``NONE``."""
    lengths, num_passed = queues.lengths, 0  # consecutive blocks of this request
    while num_passed <= lengths[MAIN]:
        block = lengths[CURSOR + MAIN]
        link = queues.links[block]
        lengths[CURSOR + MAIN] = link.newer
        if block >= queues.end or link.user == i:
            num_passed += 1
            continue
        if link.uses == 0:
            unlink(queues.links, block)
            lengths[MAIN] -= 1
            return block
        link.uses -= 1
        move(queues, block, MAIN, MAIN)
        num_passed = 0
    return NONE


def evict(queues: Queues, i: int, num_small: int) -> int:
    """Remove and return a block that request i does not use; there must be one."""
    victim = NONE
    if queues.lengths[SMALL] < num_small:
        victim = evict_main(queues, i)
    while victim == NONE:
        victim = evict_small(queues, i)
        if victim != NONE:
            queues.place[victim] = GHOST
        else:
            victim = evict_main(queues, i)
    return victim


def drop_ghosts(queues: Queues, most: int) -> None:
    """Drop the oldest ghosts, down to ``most`` ghosts."""
    while queues.lengths[GHOST] > most:
        ghost = queues.links[queues.end + GHOST].newer
        unlink(queues.links, ghost)
        queues.place[ghost] = 0
        queues.lengths[GHOST] -= 1


def insert(queues: Queues, block: int, i: int) -> None:
    """Append a block of request i to its queue."""
    if queues.place[block] == GHOST:
        queues.place[block] = 0
        move(queues, block, GHOST, MAIN)
    else:
        append(queues.links, queues.end + SMALL, block)
        queues.lengths[SMALL] += 1
    queues.links[block].user, queues.links[block].uses = i, 0


def s3fifo_hits(requests: Requests, queues: Queues, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    is_cached, lengths, end = queues.is_cached, queues.lengths, requests.num_nodes
    clear(queues, end, 3)
    num_small, total = max(1, size // SMALL_SHARE), 0
    for i in range(requests.number):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        num_own = use_cached(requests, i, queues, MAX_USES)
        lengths[CURSOR + SMALL] = queues.links[end + SMALL].newer
        lengths[CURSOR + MAIN] = end + MAIN
        for at in range(requests.offsets[i], requests.offsets[i + 1]):
            block = requests.paths[at]
            if is_cached[block]:
                continue
            if num_own == size:
                break
            if lengths[SMALL] + lengths[MAIN] == size:
                is_cached[evict(queues, i, num_small)] = 0
                drop_ghosts(queues, size - num_small)
            insert(queues, block, i)
            is_cached[block] = 1
            num_own += 1
    return total
