"""Free blocks by rank: a binary heap with lazy removal.

A block that is hit keeps its entry. At the front of the heap, entries of blocks in use are removed,
and an entry whose rank is lower than its block's current rank is moved back. So a block that is
freed again with at least its old rank needs no second entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.eviction import Ranking
    from kvsim.records.paged import BlockPool


def is_cached(pool: BlockPool, k: int) -> bool:
    """Return True if a block is free and its content can still be hit."""
    return pool.blocks[k].ref_cnt == 0 and pool.blocks[k].hashed


def set_rank(pool: BlockPool, k: int) -> None:
    """Give a block the highest rank so far."""
    pool.last_rank += 1
    pool.notes[k].rank = pool.last_rank


def insert_ranked(pool: BlockPool, k: int) -> None:
    note = pool.notes[k]
    if note.has_entry == 0:
        note.has_entry = 1
        ranking = pool.rankings[note.ranking]
        ranking.length += 1
        rise(ranking, ranking.length - 1, note.rank, k)


def pop_first(pool: BlockPool, ranking: Ranking) -> int:
    """Remove and return the free block with the smallest rank, or NONE."""
    while ranking.length > 0:
        first = ranking.entries[0]
        k, note = first.block, pool.notes[first.block]
        is_free = pool.blocks[k].ref_cnt == 0
        if is_free and note.rank > first.rank:
            sink(ranking, note.rank, k)
            continue
        drop_first(ranking)
        note.has_entry = 0
        if is_free:
            return k
    return NONE


def drop_first(ranking: Ranking) -> None:
    ranking.length -= 1
    last = ranking.entries[ranking.length]
    sink(ranking, last.rank, last.block)


def rise(ranking: Ranking, place: int, rank: int, k: int) -> None:
    """Insert an entry at an empty index of the heap, and sift it up."""
    entries = ranking.entries
    while place > 0:
        parent = (place - 1) >> 1
        if rank >= entries[parent].rank:
            break
        entries[place].rank = entries[parent].rank
        entries[place].block = entries[parent].block
        place = parent
    entries[place].rank = rank
    entries[place].block = k


def sink(ranking: Ranking, rank: int, k: int) -> None:
    """Replace the first entry of the heap, and sift the new one down."""
    entries, place, child = ranking.entries, 0, 1
    while child < ranking.length:
        if child + 1 < ranking.length:
            child += int(entries[child + 1].rank < entries[child].rank)
        if rank <= entries[child].rank:
            break
        entries[place].rank = entries[child].rank
        entries[place].block = entries[child].block
        place = child
        child = 2 * place + 1
    entries[place].rank = rank
    entries[place].block = k
