"""Blocks for KV that comes from elsewhere: taken before it arrives, named when it is there.

docs/vllm-rules.md tells the rules in words, section 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.rules.attention import cdiv, num_skipped
from kvsim.rules.eviction import note_arrival
from kvsim.rules.kept import rejoin, set_apart
from kvsim.rules.paged import cache_blocks, num_missing, num_slots, past_the_end, set_quiet
from kvsim.rules.pool import append_blocks, touch
from kvsim.rules.window import drop_out_of_window

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, Holding, KVGroup
    from kvsim.records.request import Request


def need_behind_hit(
    kv: KV, holding: Holding, num_tokens: int, hit: int, start: int, capped: bool
) -> int:
    """Free blocks that an admission takes which goes on at ``start``, behind external tokens."""
    need = 0
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        blocks = cdiv(num_tokens, group.block_size)
        if capped and group.admission_cap > 0:
            blocks = min(blocks, group.admission_cap)
        found = hit // group.block_size
        skipped = num_skipped(group.kind, group.window, start) // group.block_size
        need += max(blocks - max(skipped, found), 0)
        for place in range(skipped, found):
            block = table.blocks[place]
            need += block != NULL_BLOCK and kv.pool.blocks[block].ref_cnt == 0
    return need


def need_with_table(kv: KV, holding: Holding, num_tokens: int, capped: bool) -> int:
    """Free blocks that a request lacks which has tables already."""
    need = 0
    for g in range(kv.num_groups):
        group = kv.groups[g]
        blocks = cdiv(num_tokens, group.block_size)
        if capped and group.admission_cap > 0:
            blocks = min(blocks, group.admission_cap)
        need += max(blocks - holding.tables[g].length, 0)
    return need


def share_seen(kv: KV, group: KVGroup, table: BlockTable, hit: int, start: int) -> None:
    """Begin a table with the blocks of a hit that tokens from ``start`` on see, and null blocks."""
    skipped = num_skipped(group.kind, group.window, start) // group.block_size
    table.length = max(hit // group.block_size, skipped)
    table.num_null = skipped
    for place in range(skipped):
        table.blocks[place] = NULL_BLOCK
    for place in range(skipped, table.length):
        if table.blocks[place] == NULL_BLOCK:
            table.num_null = place + 1
        else:
            touch(kv.pool, group, table.blocks[place])
    group.num_table_blocks += table.length


def watermark(state: Replica) -> int:
    """Blocks that an admission must leave free."""
    return state.kv.watermark_blocks if state.num_running > 0 else 0


def take_external(
    state: Replica, request: Request, holding: Holding, num_tokens: int, reserved: int
) -> bool:
    """Take the slots of a waiting request, those of the connector's tokens behind its hit included.

    With no tokens to compute (an asynchronous load) there is no lookahead, and nothing is named
    yet. ``reserved`` blocks are left to others. False, with nothing changed, if there is no room.
    """
    kv, hit = state.kv, state.connector.hit
    start = min(hit + state.connector.external, kv.max_model_len)
    free = kv.pool.num_free - watermark(state)
    if kv.reserve_full_isl:
        length = min(request.num_tokens, kv.max_model_len)
        if need_behind_hit(kv, holding, length, hit, start, True) > free:
            return False
    slots = num_slots(kv, request, start + num_tokens) if num_tokens > 0 else start
    if need_behind_hit(kv, holding, slots, hit, start, False) > free - reserved:
        return False
    note_arrival(kv.pool, request, holding, kv.hash_block_size)
    for g in range(kv.num_groups):
        share_seen(kv, kv.groups[g], holding.tables[g], hit, start)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        append_blocks(kv.pool, group, table, num_missing(group, table, start))
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        append_blocks(kv.pool, group, table, num_missing(group, table, slots))
        group.num_internal += past_the_end(request, group, table)
        table.num_offered = hit // group.block_size
    holding.num_cached_tokens = hit
    holding.num_processed_tokens = start
    holding.dead_bytes = 0
    request.num_filled = min(start + num_tokens, request.max_slots)
    kv.num_filled += request.num_filled
    if num_tokens > 0:
        if kv.enable_prefix_caching:
            cache_blocks(kv, request, holding, min(start + num_tokens, request.num_tokens))
        set_quiet(kv, request, holding)
    return True


def name_loaded(kv: KV, request: Request, num_tokens: int) -> None:
    """Name the blocks of a request whose load has ended."""
    if kv.enable_prefix_caching:
        rejoin(kv, request, num_tokens)
        cache_blocks(kv, request, kv.holdings[request.holding], num_tokens)
        set_apart(kv, request)


def admit_loaded(state: Replica, request: Request, num_tokens: int) -> bool:
    """Take the slots of the next tokens of a request whose load has ended; False if there are none.

    Out-of-window blocks are dropped even then, as in vLLM.
    """
    kv, holding = state.kv, state.kv.holdings[request.holding]
    if kv.reserve_full_isl:
        length = min(request.num_tokens, kv.max_model_len)
        if need_with_table(kv, holding, length, True) > kv.pool.num_free - watermark(state):
            return False
    end = request.num_computed_tokens + num_tokens
    rejoin(kv, request, request.num_computed_tokens)
    if kv.has_windows:
        drop_out_of_window(kv, request, holding)
    slots = num_slots(kv, request, end)
    if need_with_table(kv, holding, slots, False) > kv.pool.num_free - watermark(state):
        set_apart(kv, request)
        return False
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        group.num_internal -= past_the_end(request, group, table)
        append_blocks(kv.pool, group, table, num_missing(group, table, slots))
        group.num_internal += past_the_end(request, group, table)
    filled = min(end, request.max_slots)
    kv.num_filled += filled - request.num_filled
    request.num_filled = filled
    if kv.enable_prefix_caching:
        cache_blocks(kv, request, holding, min(end, request.num_tokens))
    set_quiet(kv, request, holding)
    return True


def missing_blocks(state: Replica, request: Request) -> int:
    """Blocks that a request lacks until its prompt is computed, drafts included."""
    kv, length = state.kv, min(request.num_tokens, state.kv.max_model_len)
    if state.limits.num_drafts > 0:
        length += 1 + state.limits.num_drafts + kv.num_lookahead_tokens
    return need_with_table(kv, kv.holdings[request.holding], length, True)


def reserved_blocks(state: Replica) -> int:
    """Blocks that a new load leaves to prompts under way."""
    kv, total = state.kv, state.connector.num_missing_blocks
    for place in range(state.num_running):
        request = state.requests[state.running[place]]
        if request.num_computed_tokens < request.num_prompt_tokens:
            total += missing_blocks(state, request)
    if state.limits.num_drafts > 0:
        for g in range(kv.num_groups):
            ahead = 1 + state.limits.num_drafts + kv.num_lookahead_tokens
            total += cdiv(ahead, kv.groups[g].block_size)
    return total
