"""A linear memory that is allocated in contiguous extents, by a placement rule.

The rules are in :mod:`kvsim.rules.managers.address_space`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from kvsim.records.contiguous import AddressSpace as Space
from kvsim.records.contiguous import Hole, HolesOfSize, Placement
from kvsim.records.memory import Objects
from kvsim.records.record import NONE
from kvsim.rules.managers import address_space as rules

if TYPE_CHECKING:
    from kvsim.records.memory import Memory

Fit: TypeAlias = Literal["buddy", "first", "best"]
PLACEMENTS = {"buddy": Placement.BUDDY, "first": Placement.FIRST_FIT, "best": Placement.BEST_FIT}


def init_space(space: Space, memory: Memory, num_slots: int, fit: Fit, max_pieces: int) -> None:
    """Lay out a linear memory of ``num_slots`` slots for at most ``max_pieces`` extents."""
    space.placement = int(PLACEMENTS[fit])
    if fit != "buddy":
        space.holes = memory.room(Hole, max_pieces + 2)
        space.num_holes = int(num_slots > 0)
        space.holes[0].size = num_slots
        return
    space.num_orders = num_slots.bit_length()
    space.by_order = memory.records(HolesOfSize, space.num_orders)
    start = 0
    for order in range(space.num_orders - 1, -1, -1):
        row = space.by_order[order]
        row.starts = memory.ints(max_pieces + 2)
        if num_slots - start >= 1 << order:
            row.starts[0] = start
            row.count = 1
            start += 1 << order


class AddressSpace:
    """A linear memory of slots, allocated in contiguous extents.

    Under ``buddy``, extents are powers of two that split into halves and merge with their buddies
    (Knowlton 1965). A memory of another size is first split into powers of two, largest first.
    Under ``first`` and ``best``, an extent of the exact size is cut from a sufficient hole: the one
    at the lowest address, or the smallest one.
    """

    def __init__(self, num_slots: int, fit: Fit) -> None:
        self.num_slots, self.fit = num_slots, fit
        self.space = Space()
        init_space(self.space, Objects(), num_slots, fit, max_pieces=2**20)

    def allocate(self, num_slots: int) -> tuple[int, int] | None:
        """Allocate an extent; return (start, allocated slots), or None if no hole fits."""
        start = rules.allocate_piece(self.space, num_slots)
        return None if start == NONE else (start, rules.piece_size(self.space, num_slots))

    def free(self, start: int, size: int) -> None:
        """Free an extent, given the start and size that :meth:`allocate` returned. Mutates."""
        rules.free_piece(self.space, start, size)

    def largest(self) -> int:
        """Return the slots of the largest extent in an empty memory. Does not mutate."""
        return largest(self.num_slots, self.fit)

    def holes(self) -> list[tuple[int, int]]:
        """Return the holes (start, size) by address. Does not mutate."""
        return holes(self.space)


def largest(num_slots: int, fit: Fit) -> int:
    """Return the slots of the largest extent in an empty memory of ``num_slots`` slots."""
    return 1 << num_slots.bit_length() >> 1 if fit == "buddy" else num_slots


def holes(space: Space) -> list[tuple[int, int]]:
    """Return the holes (start, size) of a space by address."""
    if space.placement != Placement.BUDDY:
        rows = [space.holes[at] for at in range(space.num_holes)]
        return [(hole.start, hole.size) for hole in rows]
    return sorted(
        (row.starts[at], 1 << order)
        for order, row in enumerate(space.by_order)
        for at in range(row.count)
    )
