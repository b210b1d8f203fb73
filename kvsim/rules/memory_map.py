"""The memory map: KV memory in equal address ranges (bins), each with the cause at its middle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.rules.trees import mark_radix, pool_bins
from kvsim.records.kv import CONTIGUOUS, FORKED, OWN, RADIX, VIRTUAL
from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv, num_skipped
from kvsim.rules.kv import has_pool
from kvsim.rules.python import python_paint
from kvsim.rules.usage import is_refused

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks

#: Causes of use and waste; see :class:`kvsim.kv.usage.Cause`.
FREE, TOKEN_STATES, RESERVATION, INTERNAL, EXTERNAL, CACHED_FREE = 0, 1, 2, 3, 4, 5


def paint(state: Replica, first: int) -> None:
    """Write the map of the current memory into ``state.maps``, from index ``first`` on."""
    if has_pool(state.kv):
        paint_paged(state, first)
    elif state.kv.manager == CONTIGUOUS:
        paint_contiguous(state, first)
    elif state.kv.manager == VIRTUAL:
        paint_virtual(state, first)
    elif state.kv.manager == RADIX:
        mark_radix(state, CACHED_FREE, INTERNAL, 1.0)
        tree, num_bins = state.kv.radix, pool_bins(state)
        num_pages, num_windows = tree.pages.num_pages, tree.window_pages.num_pages
        paint_units(state, first, num_bins, num_pages, 1)
        paint_units(state, first + num_bins, state.num_bins - num_bins, num_windows, num_pages + 1)
        mark_radix(state, FREE, FREE, 0.0)
    elif state.kv.manager == OWN:
        paint_own(state, first)
    else:
        python_paint(state, first)
    if is_refused(state):
        for b in range(first, first + state.num_bins):
            if state.maps[b] == FREE:
                state.maps[b] = EXTERNAL


def paint_paged(state: Replica, first: int) -> None:
    """Paint blocks by cause: dead, live, reserved, never used, cached and free slots.

    Blocks held only by requests that do not run count as reserved for a transfer.
    """
    kv, pool = state.kv, state.kv.pool
    for block in range(pool.num_usable + 1):
        kv.dead_ends[block] = kv.live_ends[block] = kv.last_ends[block] = 0.0
        kv.unused[block] = CACHED_FREE if pool.blocks[block].hashed else FREE
        if pool.tracks_pins and 0 < pool.pin_counts[block] == pool.blocks[block].ref_cnt:
            kv.unused[block] = RESERVATION
    for h in range(kv.num_request_blocks):
        own_blocks = kv.request_blocks[h]
        if own_blocks.request != NONE and not (pool.tracks_pins and own_blocks.retired):
            mark_blocks(state, kv, own_blocks)
    paint_units(state, first, state.num_bins, kv.pool.num_usable, 1)  # null has no address


def paint_units(state: Replica, first: int, num_bins: int, num_units: int, first_unit: int) -> None:
    """Paint blocks or pages by the ends of their dead, live and reserved slots."""
    kv = state.kv
    if num_units == 0:
        for b in range(num_bins):
            state.maps[first + b] = FREE
        return
    for b in range(num_bins):
        middle = (b + 0.5) * (num_units / num_bins)
        unit, within = first_unit + int(middle), middle % 1.0
        cause = kv.unused[unit]
        if kv.last_ends[unit] > within:
            cause = RESERVATION
        if kv.live_ends[unit] > within:
            cause = TOKEN_STATES
        if kv.dead_ends[unit] > within:
            cause = INTERNAL
        state.maps[first + b] = cause


def mark_blocks(state: Replica, kv: KV, own_blocks: RequestBlocks) -> None:
    """Set the ends of dead, live and reserved slots in a request's blocks, as shares of a block.

    A slot of a shared block is dead if it is dead for all requests that share it.
    """
    request = state.requests[own_blocks.request]
    filled = 0 if own_blocks.retired else request.num_filled
    last = 0 if own_blocks.retired else request.max_slots
    forked = kv.manager == FORKED
    for t in range(request.num_samples if forked else kv.num_groups):
        group, table = kv.groups[0 if forked else t], own_blocks.tables[t]
        dead = num_skipped(group.kind, group.window, own_blocks.num_processed_tokens)
        for place in range(table.length):
            block, start = table.blocks[place], place * group.block_size
            if block == NULL_BLOCK:
                continue
            end = (dead - start) / group.block_size
            if kv.unused[block] == INTERNAL:  # recorded for another request
                end = min(end, kv.dead_ends[block])
            if kv.pool.tracks_pins and kv.pool.pin_counts[block] > 0:
                end = 0.0
            kv.dead_ends[block] = end
            kv.live_ends[block] = (filled - start) / group.block_size
            kv.last_ends[block] = (last - start) / group.block_size
            kv.unused[block] = INTERNAL
            if group.is_state:  # a state
                kv.dead_ends[block], kv.live_ends[block] = 0.0, 1.0


def paint_contiguous(state: Replica, first: int) -> None:
    """Paint extents by cause: live, reserved, never used, and unrequested slots."""
    kv, memory = state.kv, state.kv.contiguous
    for b in range(state.num_bins):
        state.maps[first + b] = FREE
    for h in range(kv.num_request_blocks):
        own_blocks, pieces = kv.request_blocks[h], memory.pieces[h]
        if own_blocks.request == NONE:
            continue
        request = state.requests[own_blocks.request]
        filled = 0 if own_blocks.retired else request.num_filled
        last = 0 if own_blocks.retired else pieces.last
        for k in range(request.num_samples):
            start = pieces.starts[k]
            paint_slots(state, first, start, start + filled, TOKEN_STATES)
            paint_slots(state, first, start + filled, start + last, RESERVATION)
            paint_slots(state, first, start + last, start + pieces.asked, INTERNAL)
            paint_slots(state, first, start + pieces.asked, start + pieces.size, EXTERNAL)


def paint_slots(state: Replica, first: int, start: int, stop: int, cause: int) -> None:
    """Paint the bins with their middle in a range of slots."""
    end = first_bin(state, stop)
    for b in range(first_bin(state, start), end):
        state.maps[first + b] = cause


def first_bin(state: Replica, slot: int) -> int:
    """Return the first bin with its middle at or after a slot of contiguous memory."""
    num_slots = state.kv.contiguous.num_slots
    return cdiv(2 * slot * state.num_bins - num_slots, 2 * num_slots)


def paint_virtual(state: Replica, first: int) -> None:
    """Paint pages by cause: dead, live, reserved, never used and free bytes."""
    kv = state.kv
    for page in range(kv.virtual.num_pages):
        kv.dead_ends[page] = kv.live_ends[page] = kv.last_ends[page] = 0.0
        kv.unused[page] = FREE
    for h in range(kv.num_request_blocks):
        if kv.request_blocks[h].request != NONE:
            mark_pages(state, kv, h)
    paint_units(state, first, state.num_bins, kv.virtual.num_pages, 0)


def mark_pages(state: Replica, kv: KV, h: int) -> None:
    """Set the ends of dead, live and reserved bytes in a request's pages, as shares of a page."""
    request, live = state.requests[kv.request_blocks[h].request], not kv.request_blocks[h].retired
    size = kv.virtual.page_bytes
    for k in range(kv.virtual.num_kinds):
        kind, rows = kv.virtual.tensors[k], kv.virtual.virtual_ranges[h].rows[k]
        token = kind.token_bytes if live else 0
        for place in range(rows.first * kind.num_tensors, rows.end * kind.num_tensors):
            page, start = rows.pages[place], place // kind.num_tensors * size
            kv.dead_ends[page] = (rows.seen_from * token - start) / size
            kv.live_ends[page] = (request.num_filled * token - start) / size
            kv.last_ends[page] = (request.max_slots * token - start) / size
            kv.unused[page] = INTERNAL


def paint_own(state: Replica, first: int) -> None:
    """Paint slots sorted by cause, as a user's rules give no addresses."""
    kv, own = state.kv, state.kv.own
    for b in range(state.num_bins):
        slot = (2 * b + 1) * own.num_slots // (2 * state.num_bins)
        cause = INTERNAL if slot < own.num_allocated else FREE
        if slot < own.num_last:
            cause = RESERVATION
        if slot < kv.num_filled:
            cause = TOKEN_STATES
        state.maps[first + b] = cause
