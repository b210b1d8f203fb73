"""Array-backed FIFO; removing an element from the middle leaves a hole.

Its order is that of a linked list of blocks (vLLM's free block queue). But consecutive entries are
adjacent in memory, and appending or removing writes to no neighbour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.records.paged import Block
    from kvsim.records.queue import ArrayQueue


def array_append(line: ArrayQueue, rows: Sequence[Block], k: int) -> None:
    if line.stop >= line.size:
        array_compact(line, rows)
    line.entries[line.stop] = k
    rows[k].slot = line.stop
    line.stop += 1


def array_compact(line: ArrayQueue, rows: Sequence[Block]) -> None:
    """Close the holes; with a capacity of 2N for N records, this runs at most once in N appends."""
    stop = 0
    for at in range(line.first, line.stop):
        k = line.entries[at]
        if k != NONE:
            line.entries[stop] = k
            rows[k].slot = stop
            stop += 1
    line.first, line.stop = 0, stop


def array_remove(line: ArrayQueue, rows: Sequence[Block], k: int) -> None:
    line.entries[rows[k].slot] = NONE


def array_popleft(line: ArrayQueue) -> int:
    """Remove and return the first record; the queue must not be empty."""
    while line.entries[line.first] == NONE:
        line.first += 1
    line.first += 1
    return line.entries[line.first - 1]
