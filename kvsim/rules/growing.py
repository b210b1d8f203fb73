"""Prefetches for requests that allocate a block in the next step.

Such a request needs scattered memory: its record, block table and last key, and the buckets of its
new key and of the victim's. Each address depends on the one before, so one level is prefetched for
all growing requests, then the next level. A replica without events gets no prefetches: it runs
alone, and has the CPU's caches to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.kv import PAGED
from kvsim.records.request import RUNNING
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.fetching import (
    prefetch_buckets,
    prefetch_entry,
    prefetch_item,
    prefetch_victims,
    prefetch_whole,
)
from kvsim.rules.gaps import gap_bin

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV


def foresees_growth(kv: KV) -> bool:
    """Return True if prefetching is worthwhile: with events, one group, and keys of full blocks."""
    if kv.manager != PAGED or kv.num_groups > 1 or not kv.pool.has_events:
        return False
    return kv.num_hash_lookahead_tokens == 0 and not kv.names_by_group


def begin_growing(state: Replica, gap: float) -> None:
    """Clear the list of growing requests, and prefetch the bin of a gap in seconds."""
    if foresees_growth(state.kv):
        state.num_growing = 0
        if gap > 0:
            prefetch_item(state.gaps, gap_bin(gap))


def record_growth(state: Replica, k: int) -> None:
    """List a request if it allocates in the next step; prefetch its tables and record."""
    request = state.requests[k]
    if foresees_growth(state.kv) and request.num_tokens > request.next_bookkeeping_at:
        state.growing[state.num_growing] = k
        state.num_growing += 1
        prefetch_item(state.kv.request_blocks, request.own_blocks)
        prefetch_whole(state.requests, k)


def drop_ended(state: Replica) -> None:
    """Remove listed requests that do not run or do not grow any more."""
    kept = 0
    for at in range(state.num_growing):
        k = state.growing[at]
        request = state.requests[k]
        if request.status == RUNNING and request.num_tokens > request.next_bookkeeping_at:
            state.growing[kept] = k
            kept += 1
    state.num_growing = kept


def prefetch_growth(state: Replica) -> None:
    """Prefetch tables, keys and victims of the requests that allocate in this step.

    The key of each new block is computed early; nothing changes it before it is used.
    """
    drop_ended(state)
    kv, pool, number = state.kv, state.kv.pool, state.num_growing
    prefetch_victims(pool, number)
    for at in range(number):
        own_blocks = kv.request_blocks[state.requests[state.growing[at]].own_blocks]
        prefetch_item(own_blocks.tables, 0)
        prefetch_item(own_blocks.keys, own_blocks.num_keys - 1)
    prefetch_buckets(pool, number)
    for at in range(number):
        request = state.requests[state.growing[at]]
        own_blocks, unit = kv.request_blocks[request.own_blocks], kv.hash_block_size
        known = request.num_tokens - kv.num_unnamed_tokens
        units = (known - known % kv.alignment) // unit
        if units > 0:
            extend_keys(own_blocks, request, units, unit, 0)
            prefetch_item(pool.buckets, own_blocks.keys[units - 1] & pool.bucket_mask)
    for at in range(number):
        table = kv.request_blocks[state.requests[state.growing[at]].own_blocks].tables[0]
        prefetch_item(table.blocks, table.length - 1)
    for at in range(number):
        table = kv.request_blocks[state.requests[state.growing[at]].own_blocks].tables[0]
        prefetch_entry(pool, table, table.length - 1)
    state.num_growing = 0
