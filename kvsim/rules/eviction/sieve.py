"""SIEVE: one queue, and a hand that evicts the first block not hit since its last pass.

All cached content stands in one queue, in order of arrival, and a hit moves nothing but marks its
block. The hand goes from the oldest block to the newest and round again; it takes the mark of a
block that has one, and evicts the first block without. Blocks in use keep their place and their
mark; the hand passes over them. Rankings hold the free blocks in the queue's order: those ahead of
the hand, and those behind it.

Zhang et al., SIEVE is simpler than LRU, NSDI 2024, algorithm 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.eviction.ranking import give_rank, insert_ranked, take_first
from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool


def cached_sieve(pool: BlockPool, k: int) -> None:
    """Queue a block in use that has got its key."""
    pool.notes[k].num_hits = 0
    give_rank(pool, k)
    append(pool.cached, pool.places, k)


def hit_sieve(pool: BlockPool, k: int) -> None:
    """Mark a block as hit."""
    pool.notes[k].num_hits = 1


def insert_sieve(pool: BlockPool, k: int) -> None:
    """Insert a block that has lost its last reference, on the side of the hand where it is."""
    note = pool.notes[k]
    if note.has_entry == 0:
        note.ranking = pool.ahead if note.rank > pool.hand else 1 - pool.ahead
        insert_ranked(pool, k)


def turn(pool: BlockPool) -> None:
    """Move the hand from the newest block back to before the oldest; no free block is ahead."""
    pool.ahead = 1 - pool.ahead
    pool.hand = 0


def evict_sieve(pool: BlockPool) -> int:
    """Remove and return the victim; at least one block must be free."""
    while True:
        k = take_first(pool, pool.rankings[pool.ahead])
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
