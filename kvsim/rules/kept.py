"""Blocks of requests that do not run: loading, read by somebody else, or behind a fence.

Such a request's tables count in no sum over live requests. Its blocks are marked; those that
nobody else references are reserved for a transfer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.copy_fence import free_copies
from kvsim.rules.kv import free_slots
from kvsim.rules.paged import uncount
from kvsim.rules.pool import drop_references, queue_unhashed

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import Holding
    from kvsim.records.request import Request


def mark_blocks_kept(kv: KV, holding: Holding, sign: int) -> None:
    """Mark the blocks of a holding as those of one that does not run, or take the mark away."""
    pool = kv.pool
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        for place in range(table.num_null, table.length):
            k = table.blocks[place]
            if k == NULL_BLOCK:
                continue
            if sign < 0 and pool.keepers[k] == pool.blocks[k].ref_cnt:
                group.num_kept -= 1
            pool.keepers[k] += sign
            if sign > 0 and pool.keepers[k] == pool.blocks[k].ref_cnt:
                group.num_kept += 1


def set_apart(kv: KV, request: Request) -> None:
    """Count a request's blocks as reserved for a transfer from now on."""
    holding = kv.holdings[request.holding]
    uncount(kv, request, holding, 1)
    holding.dead_bytes = 0
    holding.retired = True
    kv.num_held -= 1
    mark_blocks_kept(kv, holding, 1)


def rejoin(kv: KV, request: Request, num_filled: int) -> None:
    """Count a request's blocks again as those of one that runs, or is about to."""
    holding = kv.holdings[request.holding]
    mark_blocks_kept(kv, holding, -1)
    holding.retired = False
    request.num_filled = min(num_filled, request.max_slots)
    uncount(kv, request, holding, -1)
    kv.num_held += 1


def is_in_use(request: Request, batch: Batch) -> bool:
    """Whether a step under way computes a request, the batch being decided left out."""
    num_tokens = request.num_in_flight_tokens
    for at in range(batch.size):
        if batch.entries[at].request == request.place:
            num_tokens -= batch.entries[at].num_tokens
    return num_tokens > 0


def give_back(state: Replica, request: Request) -> None:
    """Free a request's blocks, or, if a step under way uses them, put them behind a fence."""
    connector, kv = state.connector, state.kv
    if not connector.has_fence or request.num_in_flight_tokens == 0:
        free_slots(kv, request)
        return
    set_apart(kv, request)
    kv.holdings[request.holding].request = NONE
    connector.fenced[connector.num_fenced] = request.holding
    connector.fences[connector.num_fenced] = connector.num_steps
    connector.num_fenced += 1
    request.holding = NONE
    request.quiet_until = 0


def lift_fences(state: Replica, number: int) -> None:
    """Free the blocks that waited for a step to be done."""
    connector, kv = state.connector, state.kv
    lifted = 0
    while lifted < connector.num_fenced and connector.fences[lifted] <= number:
        if connector.fenced[lifted] == NONE:
            free_copies(connector, kv, connector.num_copies[lifted])
        else:
            free_holding(kv, connector.fenced[lifted])
        lifted += 1
    if lifted == 0:
        return
    connector.num_fenced -= lifted
    for place in range(connector.num_fenced):
        connector.fenced[place] = connector.fenced[place + lifted]
        connector.fences[place] = connector.fences[place + lifted]
        connector.num_copies[place] = connector.num_copies[place + lifted]
    state.tried = False


def free_holding(kv: KV, h: int) -> None:
    """Free what a request has left behind a fence."""
    mark_blocks_kept(kv, kv.holdings[h], -1)
    free_joined(kv, kv.holdings[h])
    kv.holdings[h].retired = False
    kv.free_holdings[kv.num_free_holdings] = h
    kv.num_free_holdings += 1


def free_joined(kv: KV, holding: Holding) -> None:
    """Free the tables of all groups as one list, last to first."""
    for g in range(kv.num_groups - 1, -1, -1):
        table = holding.tables[g]
        drop_references(kv.pool, kv.groups[g], table, table.num_null, table.length)
    for g in range(kv.num_groups):
        table = holding.tables[g]
        queue_unhashed(kv.pool, table, table.num_null, table.length)
        table.length = 0
        table.num_null = 0
