"""Blocks pinned for KV transfers of requests that are not running.

The sums over live requests exclude such a request. Its blocks have a pin count. A block that is
referenced by pinned requests only is counted as reserved for a transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.paged import uncount
from kvsim.rules.blocks.pool import drop_references, queue_unhashed
from kvsim.rules.connector.copy_fence import free_copies
from kvsim.rules.kv import free_slots

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def pin_blocks(kv: KV, own_blocks: RequestBlocks, sign: int) -> None:
    """Pin the blocks of a request that does not run, or unpin them (sign -1)."""
    pool = kv.pool
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        for place in range(table.num_null, table.length):
            k = table.blocks[place]
            if k == NULL_BLOCK:
                continue
            if sign < 0 and pool.pin_counts[k] == pool.blocks[k].ref_cnt:
                group.num_pinned -= 1
            pool.pin_counts[k] += sign
            if sign > 0 and pool.pin_counts[k] == pool.blocks[k].ref_cnt:
                group.num_pinned += 1


def pin_request(kv: KV, request: Request) -> None:
    """Count a request's blocks as reserved for a transfer, not as those of a running request."""
    own_blocks = kv.request_blocks[request.own_blocks]
    uncount(kv, request, own_blocks, 1)
    own_blocks.dead_bytes = 0
    own_blocks.retired = True
    kv.num_held -= 1
    pin_blocks(kv, own_blocks, 1)


def unpin_request(kv: KV, request: Request, num_filled: int) -> None:
    """Count a request's blocks again as those of a running request."""
    own_blocks = kv.request_blocks[request.own_blocks]
    pin_blocks(kv, own_blocks, -1)
    own_blocks.retired = False
    request.num_filled = min(num_filled, request.max_slots)
    uncount(kv, request, own_blocks, -1)
    kv.num_held += 1


def is_in_use(request: Request, batch: Batch) -> bool:
    """Return True if a step in flight, other than the one being scheduled, computes a request."""
    num_tokens = request.num_in_flight_tokens
    for at in range(batch.size):
        if batch.entries[at].request == request.place:
            num_tokens -= batch.entries[at].num_tokens
    return num_tokens > 0


def free_or_fence(state: Replica, request: Request) -> None:
    """Free a request's blocks, or fence them if a step in flight uses them."""
    connector, kv = state.connector, state.kv
    if not connector.has_fence or request.num_in_flight_tokens == 0:
        free_slots(kv, request)
        return
    pin_request(kv, request)
    kv.request_blocks[request.own_blocks].request = NONE
    connector.fenced[connector.num_fenced] = request.own_blocks
    connector.fences[connector.num_fenced] = connector.num_steps
    connector.num_fenced += 1
    request.own_blocks = NONE
    request.next_bookkeeping_at = 0


def lift_fences(state: Replica, number: int) -> None:
    """Free the blocks whose fence waits for step ``number`` or for an earlier one."""
    connector, kv = state.connector, state.kv
    lifted = 0
    while lifted < connector.num_fenced and connector.fences[lifted] <= number:
        if connector.fenced[lifted] == NONE:
            free_copies(connector, kv, connector.num_copies[lifted])
        else:
            free_own_blocks(kv, connector.fenced[lifted])
        lifted += 1
    if lifted == 0:
        return
    connector.num_fenced -= lifted
    for place in range(connector.num_fenced):
        connector.fenced[place] = connector.fenced[place + lifted]
        connector.fences[place] = connector.fences[place + lifted]
        connector.num_copies[place] = connector.num_copies[place + lifted]
    state.head_lookup_failed = False


def free_own_blocks(kv: KV, h: int) -> None:
    """Free the blocks of ``kv.request_blocks[h]`` when their fence lifts."""
    pin_blocks(kv, kv.request_blocks[h], -1)
    free_joined(kv, kv.request_blocks[h])
    kv.request_blocks[h].retired = False
    kv.free_request_blocks[kv.num_free_request_blocks] = h
    kv.num_free_request_blocks += 1


def free_joined(kv: KV, own_blocks: RequestBlocks) -> None:
    """Free the blocks of all groups as one list, last to first."""
    for g in range(kv.num_groups - 1, -1, -1):
        table = own_blocks.tables[g]
        drop_references(kv.pool, kv.groups[g], table, table.num_null, table.length)
    for g in range(kv.num_groups):
        table = own_blocks.tables[g]
        queue_unhashed(kv.pool, table, table.num_null, table.length)
        table.length = 0
        table.num_null = 0
