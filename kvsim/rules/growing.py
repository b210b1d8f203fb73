"""Prefetches for requests that take a block in the next step.

Their memory is scattered: a record, its block table, its last key, the buckets of a new key and a
victim's. Each says where the next one is: prefetch one level for all growing requests, then the
next. A replica without events needs no prefetch: alone, it has the caches to itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.kv import PAGED
from kvsim.records.request import RUNNING
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.fetching import (
    ask,
    ask_for_buckets,
    ask_for_entry,
    ask_for_victims,
    ask_whole,
)
from kvsim.rules.gaps import gap_bin

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV


def foresees_growth(kv: KV) -> bool:
    """Return True if prefetching pays and is simple: one group with keys set on full blocks."""
    if kv.manager != PAGED or kv.num_groups > 1 or not kv.pool.has_events:
        return False
    return kv.num_hash_lookahead_tokens == 0 and not kv.names_by_group


def begin_growing(state: Replica, gap: float) -> None:
    """Clear the list of growing requests, and prefetch the counter of the gap before the tokens."""
    if foresees_growth(state.kv):
        state.num_growing = 0
        if gap > 0:
            ask(state.gaps, gap_bin(gap))


def note_growth(state: Replica, k: int) -> None:
    """List a request if it takes a block in the next step, and prefetch its tables and record."""
    request = state.requests[k]
    if foresees_growth(state.kv) and request.num_tokens > request.next_bookkeeping_at:
        state.growing[state.num_growing] = k
        state.num_growing += 1
        ask(state.kv.request_blocks, request.own_blocks)
        ask_whole(state.requests, k)


def leave_out_ended(state: Replica) -> None:
    """Keep the listed requests that still run and still grow."""
    kept = 0
    for at in range(state.num_growing):
        k = state.growing[at]
        request = state.requests[k]
        if request.status == RUNNING and request.num_tokens > request.next_bookkeeping_at:
            state.growing[kept] = k
            kept += 1
    state.num_growing = kept


def ask_for_growth(state: Replica) -> None:
    """Prefetch tables, keys and victims of the requests that take a block in this step.

    This computes the key of each new block early; it does not change until it is used.
    """
    leave_out_ended(state)
    kv, pool, number = state.kv, state.kv.pool, state.num_growing
    ask_for_victims(pool, number)
    for at in range(number):
        own_blocks = kv.request_blocks[state.requests[state.growing[at]].own_blocks]
        ask(own_blocks.tables, 0)
        ask(own_blocks.keys, own_blocks.num_keys - 1)
    ask_for_buckets(pool, number)
    for at in range(number):
        request = state.requests[state.growing[at]]
        own_blocks, unit = kv.request_blocks[request.own_blocks], kv.hash_block_size
        known = request.num_tokens - kv.num_unnamed_tokens
        units = (known - known % kv.alignment) // unit
        if units > 0:
            extend_keys(own_blocks, request, units, unit, 0)
            ask(pool.buckets, own_blocks.keys[units - 1] & pool.bucket_mask)
    for at in range(number):
        table = kv.request_blocks[state.requests[state.growing[at]].own_blocks].tables[0]
        ask(table.blocks, table.length - 1)
    for at in range(number):
        table = kv.request_blocks[state.requests[state.growing[at]].own_blocks].tables[0]
        ask_for_entry(pool, table, table.length - 1)
    state.num_growing = 0
