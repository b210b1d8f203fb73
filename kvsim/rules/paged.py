"""The paged KV cache: block tables over a shared pool, one per group, as vLLM 0.33 keeps them.

docs/vllm-rules.md tells the rules in words, section 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import FULL, NULL_BLOCK
from kvsim.rules.attention import cdiv, keeps_all, num_skipped, worth_caching
from kvsim.rules.events import add_second_key, note_key, note_partial, note_stored
from kvsim.rules.eviction import note_arrival
from kvsim.rules.keys import extend_keys
from kvsim.rules.pool import append_blocks, cache, forget, free_blocks, touch
from kvsim.rules.window import count_dead, drop_out_of_window, last_quiet_end, move_windows

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, Holding, KVGroup
    from kvsim.records.request import Request

# The tokens of an admission, as blocks of one group's table:
#
#   0            skipped          found                        slots
#   |  null blocks  |  hit: shared  |  new: taken from the pool  |
#   |  out of every later token's window                         |


def past_the_end(request: Request, group: KVGroup, table: BlockTable) -> int:
    """Slots of a table that its request will never fill."""
    return max(table.length * group.block_size - request.max_slots, 0)


def num_missing(group: KVGroup, table: BlockTable, slots: int) -> int:
    """Blocks that a table lacks to own so many slots."""
    if slots <= table.length * group.block_size:
        return 0
    return cdiv(slots, group.block_size) - table.length


def num_slots(kv: KV, request: Request, end: int) -> int:
    """Slots to own when the tokens up to ``end`` are scheduled."""
    if kv.reserve_output:
        end = max(end, request.max_slots)
    return min(end + kv.num_lookahead_tokens, kv.max_model_len)


def need_to_admit(kv: KV, holding: Holding, num_tokens: int, hit: int, capped: bool) -> int:
    """Free blocks an admission takes: new ones, and hit ones that nobody holds now."""
    need = 0
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        blocks = cdiv(num_tokens, group.block_size)
        if capped and group.admission_cap > 0:
            blocks = min(blocks, group.admission_cap)
        found = hit // group.block_size
        skipped = num_skipped(group.kind, group.window, hit) // group.block_size
        need += max(blocks - max(skipped, found), 0)
        for place in range(skipped, found):
            block = table.blocks[place]
            need += block != NULL_BLOCK and kv.pool.blocks[block].ref_cnt == 0
    return need


def admit_paged(
    kv: KV, request: Request, holding: Holding, num_tokens: int, hit: int, num_fetched: int
) -> bool:
    """Take the slots of a waiting request whose hit stands in the holding's tables.

    Behind the hit, ``num_fetched`` tokens come from elsewhere into new blocks. False, with nothing
    changed, if the slots are not there.
    """
    free = kv.pool.num_free - (kv.watermark_blocks if kv.num_held > 0 else 0)
    if kv.reserve_full_isl:
        length = min(request.num_tokens, kv.max_model_len)
        if need_to_admit(kv, holding, length, hit, True) > free:
            return False
    end = hit + num_fetched + num_tokens
    slots = num_slots(kv, request, end)
    if need_to_admit(kv, holding, slots, hit, False) > free:
        return False
    note_arrival(kv.pool, request, holding, kv.hash_block_size)
    for g in range(kv.num_groups):
        share_hit(kv, kv.groups[g], holding.tables[g], hit)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        append_blocks(kv.pool, group, table, num_missing(group, table, slots))
        group.num_internal += past_the_end(request, group, table)
        table.num_offered = (hit + num_fetched) // group.block_size
    holding.num_cached_tokens = hit + num_fetched
    holding.num_processed_tokens = hit + num_fetched
    holding.dead_bytes = 0
    request.num_filled = min(end, request.max_slots)
    kv.num_filled += request.num_filled
    if kv.enable_prefix_caching:
        cache_blocks(kv, request, holding, min(end, request.num_tokens))
    set_quiet(kv, request, holding)
    return True


def share_hit(kv: KV, group: KVGroup, table: BlockTable, hit: int) -> None:
    """Begin a table with the blocks of a hit, those that no later token sees left out."""
    skipped = num_skipped(group.kind, group.window, hit) // group.block_size
    table.length = hit // group.block_size
    table.num_null = skipped
    for place in range(skipped):
        table.blocks[place] = NULL_BLOCK
    for place in range(skipped, table.length):
        if table.blocks[place] == NULL_BLOCK:
            table.num_null = place + 1
        else:
            touch(kv.pool, group, table.blocks[place])
    group.num_table_blocks += table.length


def allocate_paged(kv: KV, request: Request, num_tokens: int) -> bool:
    """Append blocks for the next tokens of a running request; False if they are not there.

    Out-of-window blocks are dropped even then, as in vLLM.
    """
    end = request.num_computed_tokens + num_tokens
    if end > request.quiet_until:
        if not grow(kv, request, end):
            return False
    elif kv.has_windows:
        move_windows(kv, request, kv.holdings[request.holding])
    filled = min(end, request.max_slots)  # drafts may reach beyond the end
    kv.num_filled += filled - request.num_filled
    request.num_filled = filled
    return True


def grow(kv: KV, request: Request, end: int) -> bool:
    """Own the slots of the tokens up to ``end``, and name the blocks they fill."""
    holding = kv.holdings[request.holding]
    if kv.has_windows:
        drop_out_of_window(kv, request, holding)
    slots = num_slots(kv, request, end)
    need = 0
    for g in range(kv.num_groups):
        need += num_missing(kv.groups[g], holding.tables[g], slots)
    if need > kv.pool.num_free:
        if kv.has_windows:
            count_dead(kv, holding)
        return False
    if need > 0:
        for g in range(kv.num_groups):
            group, table = kv.groups[g], holding.tables[g]
            group.num_internal -= past_the_end(request, group, table)
            append_blocks(kv.pool, group, table, num_missing(group, table, slots))
            group.num_internal += past_the_end(request, group, table)
    if kv.enable_prefix_caching:
        cache_blocks(kv, request, holding, min(end, request.num_tokens))
    set_quiet(kv, request, holding)
    return True


def set_quiet(kv: KV, request: Request, holding: Holding) -> None:
    """Note until when growing fills last blocks, and moves windows within a block, and no more."""
    quiet = kv.max_model_len
    if kv.drops_last_block and kv.num_groups > 1:
        quiet = 0  # every group names its blocks at a pace of its own
    elif kv.enable_prefix_caching:
        quiet = holding.num_cached_tokens + kv.alignment - 1
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        # One token short: the token that fills the last block also names it.
        quiet = min(quiet, table.length * group.block_size - 1 - kv.num_lookahead_tokens)
        if group.window > 0:
            quiet = min(quiet, last_quiet_end(group, table, holding))
    request.quiet_until = quiet
    if kv.has_windows:
        count_dead(kv, holding)


def cache_blocks(kv: KV, request: Request, holding: Holding, num_tokens: int) -> None:
    """Give keys to the blocks that are full once ``num_tokens`` tokens are computed."""
    ahead = kv.num_hash_lookahead_tokens
    if ahead > 0:
        num_tokens = min(num_tokens, request.num_tokens - ahead)
    if kv.drops_last_block and kv.num_groups > 1:
        cache_unevenly(kv, request, holding, num_tokens)
        return
    num_tokens -= kv.num_unnamed_tokens
    if num_tokens < holding.num_cached_tokens + kv.alignment:
        if kv.tells_tails:
            name_tails(kv, request, holding, num_tokens // kv.alignment * kv.alignment)
        return
    num_tokens -= num_tokens % kv.alignment
    extend_keys(holding, request, num_tokens // kv.hash_block_size, kv.hash_block_size, ahead)
    for g in range(kv.num_groups):
        size = kv.groups[g].block_size
        name_blocks(kv, request, holding, g, holding.num_cached_tokens // size, num_tokens // size)
        if kv.tells_tails:
            name_tail(kv, request, holding, g, num_tokens)
    holding.num_cached_tokens = num_tokens
    set_quiet(kv, request, holding)


def name_blocks(kv: KV, request: Request, holding: Holding, g: int, first: int, stop: int) -> None:
    """Give keys to blocks of one group that a later hit could need."""
    group, table = kv.groups[g], holding.tables[g]
    all_places, log = keeps_all(kv, group), kv.pool.log
    first_key = log.num_keys
    for place in range(max(first, table.num_null), stop):
        if all_places or worth_caching(kv, group, request, place):
            if kv.pool.blocks[table.blocks[place]].hashed:  # by the end of a prompt in it
                forget(kv.pool, table.blocks[place])
            key = holding.keys[(place + 1) * group.keys_per_block - 1]
            cache(kv.pool, table.blocks[place], key)
            if kv.pool.has_events:
                note_key(log, key, place)
    if kv.pool.has_events:
        note_stored(kv, request, holding, group, first, stop, first_key)


def name_tails(kv: KV, request: Request, holding: Holding, num_tokens: int) -> None:
    """Name the block in which a prompt ends in every group, if no other block is full."""
    unit = kv.hash_block_size
    extend_keys(holding, request, num_tokens // unit, unit, kv.num_hash_lookahead_tokens)
    for g in range(kv.num_groups):
        name_tail(kv, request, holding, g, num_tokens)


def name_tail(kv: KV, request: Request, holding: Holding, g: int, num_tokens: int) -> None:
    """Name the block in which a prompt ends, by the last whole hash unit of the prompt.

    No look-up finds it, but the block counts as one with content; one that is named already has
    both names.
    """
    group, table, unit = kv.groups[g], holding.tables[g], kv.hash_block_size
    if group.kind != FULL or group.keys_per_block == 1:
        return
    units = (request.num_prompt_tokens - 1 + group.drops_last_block) // unit
    if units % group.keys_per_block == 0 or units * unit > num_tokens:
        return
    block, key = table.blocks[units // group.keys_per_block], holding.keys[units - 1]
    if not kv.pool.blocks[block].hashed:
        cache(kv.pool, block, key)
    elif not kv.pool.has_events or not add_second_key(kv.pool, block, key):
        return
    if kv.pool.has_events:
        note_partial(kv, request, holding, g, units)


def cache_unevenly(kv: KV, request: Request, holding: Holding, num_tokens: int) -> None:
    """Name the blocks of several groups, where those that drop a hit's last one keep one more."""
    whole = max(num_tokens, 0) // kv.alignment * kv.alignment
    named = max(num_tokens - kv.num_unnamed_tokens, 0)
    extend_keys(holding, request, max(num_tokens, 0) // kv.hash_block_size, kv.hash_block_size, 0)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        end = whole
        if group.drops_last_block and whole > 0:
            end = min(named, named // kv.alignment * kv.alignment + group.block_size)
        stop = end // group.block_size
        if stop > table.num_offered:
            name_blocks(kv, request, holding, g, table.num_offered, stop)
            table.num_offered = stop
        name_tail(kv, request, holding, g, end)
    holding.num_cached_tokens = max(whole, holding.num_cached_tokens)
    set_quiet(kv, request, holding)


def uncount(kv: KV, request: Request, holding: Holding, sign: int) -> None:
    """Take a live request's tables out of the sums, or add them (sign -1)."""
    kv.num_filled -= sign * request.num_filled
    kv.dead_bytes -= sign * holding.dead_bytes
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        group.num_internal -= sign * past_the_end(request, group, table)
        group.num_table_blocks -= sign * table.length


def free_paged(kv: KV, request: Request, holding: Holding) -> None:
    """Give back all blocks of a request, last to first, so that shared prefixes outlive ends."""
    if holding.retired:
        count_retired(kv, holding, -1)
    else:
        uncount(kv, request, holding, 1)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        free_blocks(kv.pool, group, table, table.num_null, table.length)
        table.length = 0
        table.num_null = 0


def count_retired(kv: KV, holding: Holding, sign: int) -> None:
    """Add the slots of an ended request whose batch keeps them, or take them out (sign -1)."""
    for g in range(kv.num_groups):
        group, table = kv.groups[g], holding.tables[g]
        group.num_retired += sign * (table.length - table.num_null) * group.block_size


def retire_paged(kv: KV, request: Request, holding: Holding) -> None:
    """Note that a request has ended while its batch keeps its slots."""
    uncount(kv, request, holding, 1)
    count_retired(kv, holding, 1)
