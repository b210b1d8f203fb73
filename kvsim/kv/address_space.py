"""Contiguous placement: where in a linear memory the next reservation goes."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Literal, Protocol, TypeAlias

Fit: TypeAlias = Literal["buddy", "first", "best"]


class AddressSpace(Protocol):
    """A linear memory of slots, handed out in contiguous pieces."""

    def allocate(self, num_slots: int) -> tuple[int, int] | None:
        """Place a piece; returns (start, slots handed out), or None unchanged if none fits."""

    def free(self, start: int, size: int) -> None:
        """Take a piece back, exactly as it was handed out. Mutates."""

    def largest(self) -> int:
        """Return the largest request that an empty memory could place. Does not mutate."""

    def holes(self) -> list[tuple[int, int]]:
        """Unallocated pieces (start, size) by address. Does not mutate."""


class BuddySpace:
    """Powers of two that split in halves and merge with their buddy (Knowlton 1965).

    A memory whose size is no power of two starts as the powers it is the sum of, largest first, so
    every piece is aligned to its own size and a piece's buddy differs in one address bit.
    """

    def __init__(self, num_slots: int) -> None:
        self._free: dict[int, list[int]] = {}  # size -> starts, ascending
        self._largest = 1 << num_slots.bit_length() >> 1
        start, size = 0, self._largest
        while size:
            self._free[size] = []
            if num_slots - start >= size:
                self._free[size].append(start)
                start += size
            size >>= 1

    def allocate(self, num_slots: int) -> tuple[int, int] | None:  # noqa: D102 - see AddressSpace
        wanted = 1 << (num_slots - 1).bit_length()
        size = wanted
        while not self._free.get(size):
            size <<= 1
            if size > self._largest:
                return None
        start = self._free[size].pop(0)
        while size > wanted:
            size >>= 1
            insort(self._free[size], start + size)
        return start, wanted

    def free(self, start: int, size: int) -> None:  # noqa: D102
        while size in self._free:
            starts, buddy = self._free[size], start ^ size
            at = bisect_left(starts, buddy)
            if at == len(starts) or starts[at] != buddy:
                break
            del starts[at]
            start, size = min(start, buddy), size << 1
        insort(self._free[size], start)

    def largest(self) -> int:  # noqa: D102
        return self._largest

    def holes(self) -> list[tuple[int, int]]:  # noqa: D102
        return sorted((start, size) for size, starts in self._free.items() for start in starts)


class FitSpace:
    """Exact pieces cut from the holes: the first that fits, or the smallest that does."""

    def __init__(self, num_slots: int, fit: Literal["first", "best"]) -> None:
        self._num_slots = num_slots
        self._fit = fit
        self._holes = [(0, num_slots)] if num_slots else []  # by address, never touching

    def allocate(self, num_slots: int) -> tuple[int, int] | None:  # noqa: D102
        fitting = [(size, at) for at, (_, size) in enumerate(self._holes) if size >= num_slots]
        if not fitting:
            return None
        _, at = min(fitting) if self._fit == "best" else fitting[0]
        start, size = self._holes[at]
        self._holes[at : at + 1] = [(start + num_slots, size - num_slots)] * (size > num_slots)
        return start, num_slots

    def free(self, start: int, size: int) -> None:  # noqa: D102
        at = bisect_left(self._holes, (start, 0))
        end, left, right = start + size, at, at
        if right < len(self._holes) and self._holes[right][0] == end:
            end += self._holes[right][1]
            right += 1
        if left and sum(self._holes[left - 1]) == start:
            left -= 1
            start = self._holes[left][0]
        self._holes[left:right] = [(start, end - start)]

    def largest(self) -> int:  # noqa: D102
        return self._num_slots

    def holes(self) -> list[tuple[int, int]]:  # noqa: D102
        return list(self._holes)


def address_space(num_slots: int, fit: Fit) -> AddressSpace:
    """Make an empty memory of ``num_slots`` slots."""
    return BuddySpace(num_slots) if fit == "buddy" else FitSpace(num_slots, fit)
