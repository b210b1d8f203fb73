"""A binary heap of (rank, block), the smallest rank first; it may hold stale entries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Ints


def with_entry(heap: Ints, length: int, rank: int, block: int) -> Ints:
    """Return a heap of ``length`` entries with one more, in a larger array if needed."""
    if length == len(heap):
        larger = np.empty((2 * length, 2), np.int64)
        larger[:length] = heap
        heap = larger
    at = length
    while at > 0 and rank < heap[(at - 1) >> 1, 0]:
        parent = (at - 1) >> 1
        heap[at, 0], heap[at, 1] = heap[parent, 0], heap[parent, 1]
        at = parent
    heap[at, 0], heap[at, 1] = rank, block
    return heap


def drop_first(heap: Ints, length: int) -> int:
    """Remove the first of ``length`` entries; return the number left."""
    length -= 1
    rank, block, at, child = heap[length, 0], heap[length, 1], 0, 1
    while child < length:
        if child + 1 < length and heap[child + 1, 0] < heap[child, 0]:
            child += 1
        if rank <= heap[child, 0]:
            break
        heap[at, 0], heap[at, 1] = heap[child, 0], heap[child, 1]
        at, child = child, 2 * child + 1
    heap[at, 0], heap[at, 1] = rank, block
    return length
