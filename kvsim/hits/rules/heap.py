"""A binary heap of (rank, block), the smallest rank first; it may hold stale entries."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.records.record import Record


@dataclass(slots=True)
class Entry(Record):
    """A block and its rank when it was added."""

    rank: int = 0
    block: int = 0


def add_entry(heap: list[Entry], length: int, rank: int, block: int) -> int:
    """Add to a heap of ``length`` entries; return the new length."""
    at = length
    while at > 0 and rank < heap[(at - 1) >> 1].rank:
        parent = heap[(at - 1) >> 1]
        heap[at].rank, heap[at].block = parent.rank, parent.block
        at = (at - 1) >> 1
    heap[at].rank, heap[at].block = rank, block
    return length + 1


def drop_first(heap: list[Entry], length: int) -> int:
    """Remove the first of ``length`` entries; return the number left."""
    length -= 1
    rank, block, at, child = heap[length].rank, heap[length].block, 0, 1
    while child < length:
        if child + 1 < length and heap[child + 1].rank < heap[child].rank:
            child += 1
        if rank <= heap[child].rank:
            break
        heap[at].rank, heap[at].block = heap[child].rank, heap[child].block
        at, child = child, 2 * child + 1
    heap[at].rank, heap[at].block = rank, block
    return length
