"""Swapping a request between GPU and host: its tables keep their shape, and get new blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.blocks.paged import set_next_bookkeeping, uncount
from kvsim.rules.blocks.pool import allocate_block, free_blocks
from kvsim.rules.managers.forked import count_forked, drop_tables, is_first, unmark

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def swap_out_paged(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """Move a request's blocks to host memory; return the bytes moved, 0 if there is no room."""
    num_blocks = 0
    for g in range(kv.num_groups):
        num_blocks += own_blocks.tables[g].length - own_blocks.tables[g].num_null
    if num_blocks > kv.num_cpu_free:
        return 0
    uncount(kv, request, own_blocks, 1)
    for g in range(kv.num_groups):
        table = own_blocks.tables[g]
        free_blocks(kv.pool, kv.groups[g], table, table.num_null, table.length)
    own_blocks.num_blocks = num_blocks
    return allocate_host_blocks(kv, own_blocks)


def allocate_host_blocks(kv: KV, own_blocks: RequestBlocks) -> int:
    """Allocate host memory for a request's blocks; return its bytes."""
    kv.num_cpu_free -= own_blocks.num_blocks
    return own_blocks.num_blocks * kv.bytes_per_block


def free_host_blocks(kv: KV, own_blocks: RequestBlocks) -> int:
    """Free the host memory of a request's blocks; return its bytes."""
    kv.num_cpu_free += own_blocks.num_blocks
    return own_blocks.num_blocks * kv.bytes_per_block


def can_swap_in(kv: KV, own_blocks: RequestBlocks, num_more: int) -> bool:
    """Return True if enough blocks are free to swap a request in, as in vLLM V0.

    If other requests run, ``num_more`` blocks to grow and the watermark must be free as well.
    """
    needed = own_blocks.num_blocks
    if kv.num_held > 0:
        needed += num_more + kv.watermark_blocks
    return needed <= kv.pool.num_free


def swap_in_paged(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """Move a request back into new blocks; return the bytes moved, 0 if too few blocks are free."""
    if not can_swap_in(kv, own_blocks, 1):
        return 0
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        for place in range(table.num_null, table.length):
            table.blocks[place] = allocate_block(kv.pool, group)
        group.num_used += table.length - table.num_null
    own_blocks.num_cached_tokens = request.num_filled  # its keys were lost with its blocks
    uncount(kv, request, own_blocks, -1)
    set_next_bookkeeping(kv, request, own_blocks)
    return free_host_blocks(kv, own_blocks)


def swap_out_forked(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """Move a request's blocks to host memory; return the bytes moved, 0 if there is no room."""
    if own_blocks.num_blocks > kv.num_cpu_free:
        return 0
    drop_tables(kv, request, own_blocks)
    return allocate_host_blocks(kv, own_blocks)


def swap_in_forked(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """Move a request back into new blocks; return the bytes moved, 0 if too few blocks are free."""
    if not can_swap_in(kv, own_blocks, request.num_samples):
        return 0
    reallocate_blocks(kv, request, own_blocks)
    return free_host_blocks(kv, own_blocks)


def reallocate_blocks(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Replace a request's blocks by new ones, allocated in the order of the old ids."""
    pool, count = kv.pool, 0
    for s in range(request.num_samples):
        table = own_blocks.tables[s]
        for place in range(table.length):
            if is_first(kv, table.blocks[place]):
                kv.places[count] = table.blocks[place]
                count += 1
    unmark(kv, request, own_blocks, 0)
    sort_places(kv.places, count)
    for k in range(count):
        new = allocate_block(pool, kv.groups[0])
        pool.blocks[new].ref_cnt = 0
        kv.moved_to[kv.places[k]] = new
    kv.groups[0].num_used += count
    for s in range(request.num_samples):
        table = own_blocks.tables[s]
        for place in range(table.length):
            table.blocks[place] = kv.moved_to[table.blocks[place]]
            pool.blocks[table.blocks[place]].ref_cnt += 1
    count_forked(kv, request, own_blocks, 1)


def sort_places(places: list[int], count: int) -> None:
    """Sort the first ``count`` entries of a list, smallest first (Shell's sort)."""
    gap = count // 2
    while gap > 0:
        for k in range(gap, count):
            place, at = places[k], k
            while at >= gap and places[at - gap] > place:
                places[at] = places[at - gap]
                at -= gap
            places[at] = place
        gap //= 2
