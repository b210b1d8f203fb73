"""Blocks for external KV: allocated before the load; their keys are set after it.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.checkpoint import takes_checkpoint
from kvsim.rules.blocks.mamba import append_states, grow_states, states_to_grow
from kvsim.rules.blocks.paged import (
    cache_blocks,
    most_blocks,
    need_to_admit,
    num_missing,
    past_the_end,
    set_next_bookkeeping,
    share_hit,
)
from kvsim.rules.blocks.pool import append_blocks
from kvsim.rules.blocks.slots import num_slots, slots_of_drafts
from kvsim.rules.blocks.window import drop_out_of_window
from kvsim.rules.connector.pinned import pin_request, unpin_request
from kvsim.rules.eviction.policies import record_arrival

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, KVGroup, RequestBlocks
    from kvsim.records.request import Request


def need_with_table(kv: KV, request: Request, num_tokens: int, end: int, capped: bool) -> int:
    """Return the blocks that the tables of a request lack for ``num_tokens`` slots.

    ``num_tokens`` includes lookahead slots; ``end`` does not, as states do not need them.
    """
    need = 0
    for g in range(kv.num_groups):
        group, table = kv.groups[g], kv.request_blocks[request.own_blocks].tables[g]
        if group.caches_states:
            need += states_to_grow(kv, request, group, table, end)
            continue
        need += max(most_blocks(group, num_tokens, capped) - table.length, 0)
    return need


def allocate_loaded(kv: KV, request: Request, g: int, start: int) -> None:
    """Allocate a group's blocks for the tokens before ``start``; for states, only the last one."""
    group, table = kv.groups[g], kv.request_blocks[request.own_blocks].tables[g]
    missing = num_missing(group, table, start)
    if group.caches_states:
        kv.states.pending[request.own_blocks * kv.num_groups + g] = NONE
        missing = cdiv(start, group.block_size) - table.length
    append_blocks(kv.pool, group, table, max(missing, 0))


def allocate_states(kv: KV, group: KVGroup, table: BlockTable, start: int, end: int) -> None:
    """Allocate the states of the first tokens after the external ones."""
    slots = cdiv(end, group.block_size) + group.num_spec_blocks
    if slots > table.length:
        append_states(kv, group, table, slots, 0, takes_checkpoint(kv, group, start, end), end)


def loaded_states(kv: KV, start: int, end: int) -> int:
    """Return the number of states that are loaded besides those in which a step ends.

    vLLM does not count them, and fails if they are missing.
    """
    count = 0
    for g in range(kv.num_groups):
        size = kv.groups[g].block_size
        count += kv.groups[g].caches_states and cdiv(end, size) > cdiv(start, size)
    return count


def watermark(state: Replica) -> int:
    """Return the number of blocks that an admission must leave free."""
    return state.kv.watermark_blocks if state.num_running > 0 else 0


def allocate_external(
    state: Replica, request: Request, own_blocks: RequestBlocks, num_tokens: int, reserved: int
) -> bool:
    """Allocate the slots of a waiting request: hit, external tokens, and ``num_tokens`` to compute.

    An asynchronous load computes no tokens, so it gets no lookahead slots, and no keys are set yet.
    ``reserved`` blocks stay free for other requests. If there is no room, return False and change
    nothing.
    """
    kv, hit, computes = state.kv, state.connector.hit, not state.connector.is_async
    start = min(hit + state.connector.external, kv.max_model_len)
    free = kv.pool.num_free - watermark(state)
    if kv.reserve_full_isl:
        length = min(request.num_tokens, kv.max_model_len)
        if need_to_admit(kv, own_blocks, length, length, hit, start, True) > free:
            return False
    end = start + num_tokens
    slots = num_slots(kv, request, end) if computes else start
    need = need_to_admit(kv, own_blocks, slots, end, hit, start, False)
    if need + loaded_states(kv, start, end) > free - reserved:
        return False
    record_arrival(kv, request, own_blocks)
    for g in range(kv.num_groups):
        share_hit(kv, kv.groups[g], own_blocks.tables[g], hit, start)
    request.own_blocks = kv.free_request_blocks[kv.num_free_request_blocks - 1]
    for g in range(kv.num_groups):
        own_blocks.tables[g].num_offered = own_blocks.tables[g].length
        allocate_loaded(kv, request, g, start)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        if group.caches_states:
            allocate_states(kv, group, table, start, end)
        else:
            append_blocks(kv.pool, group, table, num_missing(group, table, slots))
        group.num_internal += past_the_end(request, group, table)
    own_blocks.num_cached_tokens = hit
    own_blocks.num_processed_tokens = start
    own_blocks.dead_bytes = 0
    request.num_filled = min(start + num_tokens, request.max_slots)
    kv.num_filled += request.num_filled
    if computes:
        if kv.enable_prefix_caching:
            cache_blocks(kv, request, own_blocks, min(start + num_tokens, request.num_tokens))
        set_next_bookkeeping(kv, request, own_blocks)
    return True


def name_loaded(kv: KV, request: Request, num_tokens: int) -> None:
    """Set the keys of a request's blocks after its load."""
    if kv.enable_prefix_caching:
        unpin_request(kv, request, num_tokens)
        cache_blocks(kv, request, kv.request_blocks[request.own_blocks], num_tokens)
        pin_request(kv, request)


def admit_loaded(state: Replica, request: Request, num_tokens: int) -> bool:
    """Allocate slots for a request's next tokens after its load; False if there is no room.

    Blocks out of the window are freed even if the result is False, as in vLLM.
    """
    kv, own_blocks = state.kv, state.kv.request_blocks[request.own_blocks]
    if kv.reserve_full_isl:
        length = min(request.num_tokens, kv.max_model_len)
        if need_with_table(kv, request, length, length, True) > kv.pool.num_free - watermark(state):
            return False
    end = request.num_computed_tokens + num_tokens
    unpin_request(kv, request, request.num_computed_tokens)
    if kv.has_windows:
        drop_out_of_window(kv, request, own_blocks)
    slots = num_slots(kv, request, end)
    if need_with_table(kv, request, slots, end, False) > kv.pool.num_free - watermark(state):
        pin_request(kv, request)
        return False
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        group.num_internal -= past_the_end(request, group, table)
        if group.caches_states:
            grow_states(kv, request, group, table, end)
        else:
            append_blocks(kv.pool, group, table, num_missing(group, table, slots))
        group.num_internal += past_the_end(request, group, table)
    filled = min(end, request.max_slots)
    kv.num_filled += filled - request.num_filled
    request.num_filled = filled
    if kv.enable_prefix_caching:
        cache_blocks(kv, request, own_blocks, min(end, request.num_tokens))
    set_next_bookkeeping(kv, request, own_blocks)
    return True


def missing_blocks(state: Replica, request: Request) -> int:
    """Return the number of blocks that a request still needs for its prompt and drafts."""
    kv, length = state.kv, min(request.num_tokens, state.kv.max_model_len)
    if state.limits.num_drafts > 0:
        length += slots_of_drafts(state)
    return need_with_table(kv, request, length, length, True)


def reserved_blocks(state: Replica) -> int:
    """Return the number of free blocks that a new load must leave to prompts in progress."""
    kv, total = state.kv, 0
    for at in range(state.connector.num_prefills):
        total += missing_blocks(state, state.requests[state.connector.prefills[at]])
    if state.limits.num_drafts > 0:
        for g in range(kv.num_groups):
            if not kv.groups[g].is_state or kv.groups[g].holds_one:
                total += cdiv(slots_of_drafts(state), kv.groups[g].block_size)
    return total
