"""Placement of contiguous extents in a linear memory: buddy, first fit, best fit.

Buddy memory allocates powers of two. An extent splits into halves, and merges with its buddy when
both are free (Knowlton 1965). A memory of another size starts as the powers of two that sum to it,
largest first, so every extent is aligned to its size, and its buddy differs in one address bit.
First and best fit cut an extent of the exact size from the first or the smallest sufficient hole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.contiguous import BEST_FIT, BUDDY
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.contiguous import AddressSpace, HolesOfSize


def order_of(num_slots: int) -> int:
    """Return log2 of ``num_slots``, rounded up."""
    order = 0
    while 1 << order < num_slots:
        order += 1
    return order


def piece_size(space: AddressSpace, num_slots: int) -> int:
    """Return the number of slots that a request for ``num_slots`` slots allocates."""
    return 1 << order_of(num_slots) if space.placement == BUDDY else num_slots


def allocate_piece(space: AddressSpace, num_slots: int) -> int:
    """Allocate an extent; return its start, or NONE if no hole is large enough."""
    if space.placement == BUDDY:
        return allocate_buddy(space, order_of(num_slots))
    return allocate_fit(space, num_slots)


def free_piece(space: AddressSpace, start: int, size: int) -> None:
    """Free an extent of ``size`` slots, as :func:`piece_size` has returned."""
    if space.placement == BUDDY:
        free_buddy(space, start, order_of(size))
    else:
        free_fit(space, start, size)


# -- buddies --------------------------------------------------------------------------------------


def add_start(row: HolesOfSize, start: int) -> None:
    at = row.count
    while at > 0 and row.starts[at - 1] < start:
        row.starts[at] = row.starts[at - 1]
        at -= 1
    row.starts[at] = start
    row.count += 1


def take_start(row: HolesOfSize, start: int) -> bool:
    """Remove the hole at ``start``; False if there is none."""
    at = row.count - 1
    while at >= 0 and row.starts[at] < start:
        at -= 1
    if at < 0 or row.starts[at] != start:
        return False
    row.count -= 1
    for later in range(at, row.count):
        row.starts[later] = row.starts[later + 1]
    return True


def allocate_buddy(space: AddressSpace, wanted: int) -> int:
    """Allocate from the smallest sufficient hole, the lowest on a tie; free surplus halves."""
    order = wanted
    while order < space.num_orders and space.by_order[order].count == 0:
        order += 1
    if order >= space.num_orders:
        return NONE
    row = space.by_order[order]
    row.count -= 1
    start = row.starts[row.count]
    while order > wanted:
        order -= 1
        add_start(space.by_order[order], start + (1 << order))
    return start


def free_buddy(space: AddressSpace, start: int, order: int) -> None:
    """Free an extent; merge it with its buddy as long as the buddy is free."""
    while take_start(space.by_order[order], start ^ (1 << order)):
        start = min(start, start ^ (1 << order))
        order += 1
    add_start(space.by_order[order], start)


# -- first and best fit ---------------------------------------------------------------------------


def add_hole(space: AddressSpace, at: int, start: int, size: int) -> None:
    """Insert a hole before the hole at an index."""
    for later in range(space.num_holes, at, -1):
        space.holes[later].start = space.holes[later - 1].start
        space.holes[later].size = space.holes[later - 1].size
    space.holes[at].start = start
    space.holes[at].size = size
    space.num_holes += 1


def remove_hole(space: AddressSpace, at: int) -> None:
    space.num_holes -= 1
    for later in range(at, space.num_holes):
        space.holes[later].start = space.holes[later + 1].start
        space.holes[later].size = space.holes[later + 1].size


def hole_for(space: AddressSpace, num_slots: int) -> int:
    """Return the index of the hole from which an extent is cut, or NONE."""
    best = NONE
    for at in range(space.num_holes):
        size = space.holes[at].size
        if size >= num_slots and (best == NONE or size < space.holes[best].size):
            best = at
            if space.placement != BEST_FIT:
                break
    return best


def allocate_fit(space: AddressSpace, num_slots: int) -> int:
    """Cut an extent from the front of a hole."""
    at = hole_for(space, num_slots)
    if at == NONE:
        return NONE
    hole = space.holes[at]
    start = hole.start
    if hole.size > num_slots:
        hole.start += num_slots
        hole.size -= num_slots
    else:
        remove_hole(space, at)
    return start


def free_fit(space: AddressSpace, start: int, size: int) -> None:
    """Free an extent, and merge it with adjacent holes."""
    at = space.num_holes
    while at > 0 and space.holes[at - 1].start > start:
        at -= 1
    if at < space.num_holes and space.holes[at].start == start + size:
        size += space.holes[at].size
        remove_hole(space, at)
    if at > 0 and space.holes[at - 1].start + space.holes[at - 1].size == start:
        space.holes[at - 1].size += size
    else:
        add_hole(space, at, start, size)
