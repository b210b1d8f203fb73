"""Heaps of blocks by key, smallest first; ``places`` holds the index of each block in its heap."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def settle(heap: list[int], places: list[int], keys: Sequence[Any], length: int, at: int) -> None:
    """Move the block at index ``at`` of a heap up or down to the position of its key."""
    k = heap[at]
    key = keys[k]
    while at > 0 and key < keys[heap[(at - 1) >> 1]]:
        heap[at] = heap[(at - 1) >> 1]
        places[heap[at]] = at
        at = (at - 1) >> 1
    child = 2 * at + 1
    while child < length:
        if child + 1 < length and keys[heap[child + 1]] < keys[heap[child]]:
            child += 1
        if key <= keys[heap[child]]:
            break
        heap[at] = heap[child]
        places[heap[at]] = at
        at = child
        child = 2 * at + 1
    heap[at] = k
    places[k] = at


def push_timed(
    heap: list[int], places: list[int], keys: Sequence[Any], length: int, k: int
) -> None:
    """Add a block to a heap of ``length`` others."""
    heap[length] = k
    settle(heap, places, keys, length + 1, length)


def drop_timed(
    heap: list[int], places: list[int], keys: Sequence[Any], length: int, k: int
) -> None:
    """Remove a block from a heap of ``length`` blocks."""
    at, last = places[k], heap[length - 1]
    if k != last:
        heap[at] = last
        settle(heap, places, keys, length - 1, at)
