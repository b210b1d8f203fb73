"""Lays out an empty contiguous KV memory for the rules of :mod:`kvsim.rules.contiguous`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.contiguous import BUDDY, Hole, HolesOfSize, Pieces, Placement, Reserve
from kvsim.records.kv import CONTIGUOUS
from kvsim.records.paged import Holding

if TYPE_CHECKING:
    from kvsim.records.contiguous import AddressSpace
    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory

PLACEMENTS = {
    "buddy": Placement.BUDDY,
    "first": Placement.FIRST_FIT,
    "best": Placement.BEST_FIT,
}


def lay_out_holdings(memory: Memory, kv: KV, count: int) -> None:
    """Make room for requests that hold memory, without block tables."""
    kv.holdings = memory.records(Holding, count)
    kv.num_holdings = count
    kv.free_holdings = memory.list_of(range(count - 1, -1, -1))
    kv.num_free_holdings = count


def lay_out_space(
    memory: Memory, space: AddressSpace, num_slots: int, placement: int, max_pieces: int
) -> None:
    """Lay out a linear memory that holds at most so many pieces at once."""
    space.placement = placement
    if placement != BUDDY:
        space.holes = memory.records(Hole, max_pieces + 2)
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


def lay_out_contiguous(
    memory: Memory,
    kv: KV,
    *,
    num_slots: int,
    slot_bytes: int,
    window: int | None,
    max_model_len: int,
    fit: str,
    reserve: Reserve,
    max_requests: int,
    max_samples: int = 1,
) -> None:
    """Lay out the memory of a contiguous manager.

    Parameters
    ----------
    window : of the rolling buffer that every piece is, None for none
    fit : where a piece goes: "buddy", "first" or "best"
    max_requests : most requests that hold memory at once
    max_samples : most sequences of one of them
    """
    contiguous = kv.contiguous
    kv.manager = CONTIGUOUS
    kv.max_model_len = max_model_len
    kv.has_windows = window is not None
    contiguous.reserve = int(reserve)
    contiguous.num_slots = num_slots
    contiguous.slot_bytes = slot_bytes
    contiguous.window = window or 0
    lay_out_holdings(memory, kv, max_requests + 1)
    contiguous.pieces = memory.records(Pieces, max_requests + 1)
    for k in range(max_requests + 1):
        contiguous.pieces[k].starts = memory.ints(max_samples)
    num_pieces = max_requests * max_samples
    lay_out_space(memory, contiguous.space, num_slots, int(PLACEMENTS[fit]), num_pieces)
