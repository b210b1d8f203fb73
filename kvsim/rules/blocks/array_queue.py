"""A queue in an array: who leaves before his turn leaves a gap.

Its order is that of a list threaded through the records (vLLM's free block queue), but who comes
next stands side by side, and nobody's neighbours are written to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.records.paged import Block
    from kvsim.records.queue import ArrayQueue


def array_append(line: ArrayQueue, rows: Sequence[Block], k: int) -> None:
    """Put the k-th record at the end."""
    if line.stop >= line.size:
        array_compact(line, rows)
    line.entries[line.stop] = k
    rows[k].slot = line.stop
    line.stop += 1


def array_compact(line: ArrayQueue, rows: Sequence[Block]) -> None:
    """Fill the gaps; with twice the room that all need, it comes once in so many arrivals."""
    stop = 0
    for at in range(line.first, line.stop):
        k = line.entries[at]
        if k != NONE:
            line.entries[stop] = k
            rows[k].slot = stop
            stop += 1
    line.first, line.stop = 0, stop


def array_remove(line: ArrayQueue, rows: Sequence[Block], k: int) -> None:
    """Take the k-th record out, wherever it stands."""
    line.entries[rows[k].slot] = NONE


def array_popleft(line: ArrayQueue) -> int:
    """Take out who stands first, and return it; somebody does."""
    while line.entries[line.first] == NONE:
        line.first += 1
    line.first += 1
    return line.entries[line.first - 1]
