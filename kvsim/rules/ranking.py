"""Blocks by rank: a binary heap in which every block knows its place, so that it can leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.eviction import Note, Ranking
    from kvsim.records.paged import BlockPool


def give_rank(pool: BlockPool, k: int) -> None:
    """Rank a block behind all that were ranked before."""
    pool.num_ranked += 1
    pool.notes[k].rank = pool.num_ranked


def ranks_before(a: Note, b: Note) -> bool:
    """Whether a block is to go before another."""
    return a.rank < b.rank or (a.rank == b.rank and a.order < b.order)


def rise(ranking: Ranking, notes: list[Note], place: int, k: int) -> None:
    """Put a block where a place is empty, or nearer to the root, to where it belongs."""
    blocks, note = ranking.blocks, notes[k]
    while place > 0:
        parent = (place - 1) >> 1
        other = notes[blocks[parent]]
        if not ranks_before(note, other):
            break
        blocks[place] = blocks[parent]
        other.place = place
        place = parent
    blocks[place] = k
    note.place = place


def sink(ranking: Ranking, notes: list[Note], place: int, k: int) -> None:
    """Put a block where a place is empty, or further from the root, to where it belongs."""
    blocks, note, child = ranking.blocks, notes[k], 2 * place + 1
    while child < ranking.length:
        least = notes[blocks[child]]
        if child + 1 < ranking.length:
            right = notes[blocks[child + 1]]
            if ranks_before(right, least):
                child += 1
                least = right
        if not ranks_before(least, note):
            break
        blocks[place] = blocks[child]
        least.place = place
        place = child
        child = 2 * place + 1
    blocks[place] = k
    note.place = place


def push(ranking: Ranking, notes: list[Note], k: int) -> None:
    """Add a block that has its rank."""
    ranking.length += 1
    rise(ranking, notes, ranking.length - 1, k)


def take_out(ranking: Ranking, notes: list[Note], k: int) -> None:
    """Take a block out, wherever it stands."""
    place = notes[k].place
    ranking.length -= 1
    last = ranking.blocks[ranking.length]
    if last == k:
        return
    if place > 0 and ranks_before(notes[last], notes[ranking.blocks[(place - 1) >> 1]]):
        rise(ranking, notes, place, last)
    else:
        sink(ranking, notes, place, last)


def pop(ranking: Ranking, notes: list[Note]) -> int:
    """Take out and return the block with the smallest rank; there is one."""
    k = ranking.blocks[0]
    take_out(ranking, notes, k)
    return k
