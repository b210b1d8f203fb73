"""S3-FIFO: three queues that keep blocks used once from evicting reused ones.

New content starts in a small queue, and moves to the main queue if it is hit twice there. The key
of a block evicted from the small queue is kept as a ghost: content that returns while its ghost
exists goes to the main queue at once. In the main queue, a block with hits moves to the end instead
of being evicted. Blocks in use keep their position but cannot be victims, so a ranking per queue
holds its free blocks in order.

Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.contents import NO_CONTENT
from kvsim.records.record import NONE
from kvsim.rules.blocks.contents import add_content, drop_content, find_content, renew_content
from kvsim.rules.eviction.ranking import insert_ranked, pop_first, set_rank

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool

SMALL_SHARE = 0.1  # smallest share of the cached blocks at which the small queue evicts
MAX_HITS = 3  # hits above this number are not counted
SMALL, MAIN = 0, 1


def enqueue_block(pool: BlockPool, k: int, queue: int) -> None:
    pool.notes[k].ranking = queue
    pool.rankings[queue].num_queued += 1
    set_rank(pool, k)


def cached_s3fifo(pool: BlockPool, k: int) -> None:
    """Queue a block in use that has got its key."""
    pool.notes[k].num_hits = 0
    ghost = find_content(pool.ghosts, pool.blocks[k].key)
    if ghost == NO_CONTENT:
        enqueue_block(pool, k, SMALL)
    else:
        drop_content(pool.ghosts, ghost)
        enqueue_block(pool, k, MAIN)


def hit_s3fifo(pool: BlockPool, k: int) -> None:
    note = pool.notes[k]
    note.num_hits = min(note.num_hits + 1, MAX_HITS)


def is_small_first(pool: BlockPool) -> bool:
    """Return True if the small queue has reached its share of the blocks, so that it evicts."""
    small, main = pool.rankings[SMALL].num_queued, pool.rankings[MAIN].num_queued
    return small >= SMALL_SHARE * (small + main)


def evict_s3fifo(pool: BlockPool) -> int:
    """Remove and return the victim; at least one block must be free."""
    while True:
        queue = SMALL if is_small_first(pool) else MAIN
        k = pop_first(pool, pool.rankings[queue])
        if k == NONE:
            queue = MAIN if queue == SMALL else SMALL
            k = pop_first(pool, pool.rankings[queue])
        pool.rankings[queue].num_queued -= 1
        note = pool.notes[k]
        if queue == SMALL and note.num_hits > 1:
            note.num_hits = 0
        elif queue == MAIN and note.num_hits > 0:
            note.num_hits -= 1
        else:
            if queue == SMALL:
                remember_ghost(pool, pool.blocks[k].key)
            return k
        enqueue_block(pool, k, MAIN)
        insert_ranked(pool, k)


def remember_ghost(pool: BlockPool, key: int) -> None:
    """Add or renew the ghost of a key; keep at most as many ghosts as the main queue has blocks."""
    ghosts = pool.ghosts
    ghost = find_content(ghosts, key)
    if ghost == NO_CONTENT:
        add_content(ghosts, key)
    else:
        renew_content(ghosts, ghost)
    while ghosts.queue.length > max(pool.rankings[MAIN].num_queued, 1):
        drop_content(ghosts, ghosts.queue.head)
