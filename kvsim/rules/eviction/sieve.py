"""SIEVE: one queue, and a hand that evicts the first block not hit since its last pass.

All cached blocks are in one queue, in order of insertion; a hit marks its block but does not move
it. The hand moves from the oldest block to the newest and starts over. It clears the mark of a
marked block, and evicts the first unmarked one. It skips blocks in use, which keep their position
and mark. Two rankings hold the free blocks in queue order: those ahead of the hand, and the others.

Zhang et al., SIEVE is simpler than LRU, NSDI 2024, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.eviction.ranking import insert_ranked, pop_first, set_rank
from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool


def cached_sieve(pool: BlockPool, k: int) -> None:
    """Append a block in use that has got its key to the queue."""
    pool.notes[k].num_hits = 0
    set_rank(pool, k)
    append(pool.cached, pool.places, k)


def hit_sieve(pool: BlockPool, k: int) -> None:
    pool.notes[k].num_hits = 1


def insert_sieve(pool: BlockPool, k: int) -> None:
    """Insert a block that has lost its last reference into the ranking of its side of the hand."""
    note = pool.notes[k]
    if note.has_entry == 0:
        note.ranking = pool.ahead if note.rank > pool.hand else 1 - pool.ahead
        insert_ranked(pool, k)


def turn(pool: BlockPool) -> None:
    """Move the hand from the end of the queue to its start; all free blocks are then ahead."""
    pool.ahead = 1 - pool.ahead
    pool.hand = 0


def evict_sieve(pool: BlockPool) -> int:
    """Remove and return the victim; at least one block must be free."""
    while True:
        k = pop_first(pool, pool.rankings[pool.ahead])
        if k == NONE:
            turn(pool)
            continue
        note = pool.notes[k]
        pool.hand = note.rank
        if note.num_hits == 0:
            break
        note.num_hits = 0
        note.ranking = 1 - pool.ahead
        insert_ranked(pool, k)
    if pool.cached.tail == k:
        turn(pool)
    remove(pool.cached, pool.places, k)
    return k
