"""The paged KV cache as in vLLM 0.33: a request has a block table per group over a shared pool.

docs/vllm-rules.md, section 6, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import FULL, NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import (
    cdiv,
    keeps_all,
    last_quiet_end,
    num_skipped,
    worth_caching,
)
from kvsim.rules.blocks.keys import extend_keys
from kvsim.rules.blocks.mamba import (
    admit_states,
    grow_states,
    name_states,
    states_to_admit,
    states_to_grow,
)
from kvsim.rules.blocks.partial_keys import copy_hit, name_part
from kvsim.rules.blocks.pool import (
    append_blocks,
    cache,
    drop_hash_aliases,
    forget,
    free_blocks,
    touch,
)
from kvsim.rules.blocks.shortage import forget_if_shared, record_shortage, stays_short
from kvsim.rules.blocks.slots import end_within, has_lookahead, num_slots
from kvsim.rules.blocks.window import count_dead, drop_out_of_window, move_windows
from kvsim.rules.events import note_stored, record_key, record_partial
from kvsim.rules.eviction.policies import record_arrival
from kvsim.rules.fetching import prefetch_key, prefetch_keys
from kvsim.rules.vllm.replay import filled_by_hit

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, KVGroup, RequestBlocks
    from kvsim.records.request import Request

# The tokens of an admission, as blocks of one group's table:
#
#   0            skipped          found                        slots
#   |  null blocks  |  hit: shared  |  new: taken from the pool  |
#   |  out of every later token's window                         |


def past_the_end(request: Request, group: KVGroup, table: BlockTable) -> int:
    """Return the slots of a table that its request never fills; 0 for states."""
    if group.is_state:
        return 0
    return max(table.length * group.block_size - request.max_slots, 0)


def num_missing(group: KVGroup, table: BlockTable, slots: int) -> int:
    """Return the number of blocks that a table lacks for ``slots`` slots."""
    if group.holds_one:
        return 1 - table.length
    slots += group.num_spec_blocks * group.block_size
    if slots <= table.length * group.block_size:
        return 0
    return cdiv(slots, group.block_size) - table.length


def num_found(kv: KV, group: KVGroup, hit: int) -> int:
    """Return the number of a group's blocks that a hit covers, at least in part."""
    if not group.is_cached:
        return 0
    return cdiv(hit, group.block_size) if kv.matches_partially else hit // group.block_size


def most_blocks(group: KVGroup, num_tokens: int, capped: bool) -> int:
    """Return the blocks of a group for ``num_tokens``; ``capped``: at most its admission cap."""
    if group.holds_one:
        return 1
    blocks = cdiv(num_tokens, group.block_size) + group.num_spec_blocks
    if capped and group.admission_cap > 0:
        blocks = min(blocks, group.admission_cap)
    return blocks


def need_to_admit(
    kv: KV, own_blocks: RequestBlocks, num_tokens: int, end: int, hit: int, start: int, capped: bool
) -> int:
    """Return the free blocks that an admission needs: new ones, and hit ones without references.

    ``num_tokens`` includes lookahead slots; ``end`` does not, as states do not need them. The
    request continues at ``start``, after its hit and the tokens that are loaded or fetched.
    """
    need = 0
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        if group.caches_states:
            need += states_to_admit(kv, own_blocks, g, end, hit)
            continue
        blocks = most_blocks(group, num_tokens, capped)
        found = num_found(kv, group, hit)
        skipped = num_skipped(group.kind, group.window, start) // group.block_size
        need += max(blocks - max(skipped, found), 0)
        if kv.matches_partially and found * group.block_size > hit:
            need += 1  # the last block of the hit is copied
        for place in range(skipped, found):
            block = table.blocks[place]
            need += block != NULL_BLOCK and kv.pool.blocks[block].ref_cnt == 0
    return need


def num_free_to_admit(kv: KV) -> int:
    """Return the free blocks that an admission may use."""
    return kv.pool.num_free - (kv.watermark_blocks if kv.num_held > 0 else 0)


def num_reserved(kv: KV, request: Request) -> int:
    """Return the blocks of one group for all known tokens of a request."""
    return most_blocks(kv.groups[0], min(request.num_tokens, kv.max_model_len), True)


def lacks_blocks(kv: KV, request: Request) -> bool:
    """Return True if a waiting request is certainly refused, as after its last look-up."""
    return stays_short(kv, request, num_reserved(kv, request), num_free_to_admit(kv))


def admit_paged(
    kv: KV, request: Request, own_blocks: RequestBlocks, num_tokens: int, hit: int, num_fetched: int
) -> bool:
    """Allocate the slots of a waiting request; the tables of ``own_blocks`` hold its hit.

    After the hit, ``num_fetched`` tokens are fetched into new blocks. If there is no room, return
    False and change nothing.
    """
    free = num_free_to_admit(kv)
    if kv.reserve_full_isl:
        length = min(request.num_tokens, kv.max_model_len)
        need = need_to_admit(kv, own_blocks, length, length, hit, hit, True)
        if need > free:
            record_shortage(kv, request, num_reserved(kv, request) - need)
            return False
    end = hit + num_fetched + num_tokens
    slots = num_slots(kv, request, end)
    if need_to_admit(kv, own_blocks, slots, end, hit, hit, False) > free:
        return False
    kv.pool.short_request = NONE
    record_arrival(kv, request, own_blocks)
    for g in range(kv.num_groups):
        share_hit(kv, kv.groups[g], own_blocks.tables[g], hit, hit)
    if kv.has_states:
        request.own_blocks = kv.free_request_blocks[kv.num_free_request_blocks - 1]
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        if group.caches_states:
            admit_states(kv, request, group, table, end, hit)
        else:
            if kv.matches_partially and table.length * group.block_size > hit:
                copy_hit(kv, group, table)
            append_blocks(kv.pool, group, table, num_missing(group, table, slots))
        group.num_internal += past_the_end(request, group, table)
        table.num_offered = (hit + num_fetched) // group.block_size
    own_blocks.num_cached_tokens = hit + num_fetched
    own_blocks.num_processed_tokens = hit + num_fetched
    own_blocks.dead_bytes = 0
    request.num_filled = min(end, request.max_slots)
    kv.num_filled += request.num_filled
    if kv.enable_prefix_caching:
        cache_blocks(kv, request, own_blocks, min(end, request.num_tokens))
    set_next_bookkeeping(kv, request, own_blocks)
    return True


def share_hit(kv: KV, group: KVGroup, table: BlockTable, hit: int, start: int) -> None:
    """Fill a table with a hit's blocks; null blocks replace those that no later token sees.

    A later token is one from ``start`` on.

    The null blocks may reach beyond the hit, into tokens that are loaded or fetched.
    """
    skipped = num_skipped(group.kind, group.window, start) // group.block_size
    table.length = max(num_found(kv, group, hit), skipped)
    table.num_null = skipped
    for place in range(skipped):
        table.blocks[place] = NULL_BLOCK
    for place in range(skipped, table.length):
        if table.blocks[place] != NULL_BLOCK:
            touch(kv.pool, group, table.blocks[place])
        elif table.num_null == place:
            table.num_null = place + 1
    group.num_table_blocks += table.length


def allocate_paged(kv: KV, request: Request, num_tokens: int) -> bool:
    """Append blocks for the next tokens of a running request; False if too few blocks are free.

    Blocks out of the window are freed even if the result is False, as in vLLM.
    """
    end = request.num_computed_tokens + num_tokens
    if end > request.next_bookkeeping_at and not only_fills(kv, request, end):
        if not grow(kv, request, end):
            return False
    elif kv.has_windows:
        move_windows(kv, request, kv.request_blocks[request.own_blocks])
    filled = min(end, request.max_slots)  # drafts may reach beyond the end
    if kv.replay_window > 0:
        filled = filled_by_hit(request, kv.request_blocks[request.own_blocks], filled)
    kv.num_filled += filled - request.num_filled
    request.num_filled = filled
    return True


def only_fills(kv: KV, request: Request, end: int) -> bool:
    """Return True if the last scheduled token fills a block, but its value is not known yet.

    Under asynchronous scheduling this holds for every decode. The block gets its key with the next
    token.
    """
    if kv.has_windows or kv.has_states or has_lookahead(kv):
        return False
    return end == request.next_bookkeeping_at + 1 and request.num_tokens < end


def need_to_grow(kv: KV, request: Request, own_blocks: RequestBlocks, end: int) -> int:
    """Return the free blocks that the next tokens of a running request need; may be negative."""
    slots, need = num_slots(kv, request, end), 0
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        if group.caches_states:
            need += states_to_grow(kv, request, group, table, end)
        else:
            need += num_missing(group, table, slots)
    return need


def grow(kv: KV, request: Request, end: int) -> bool:
    """Allocate slots for the tokens up to ``end``, and set the keys of blocks that they fill."""
    own_blocks = kv.request_blocks[request.own_blocks]
    if kv.has_windows:
        drop_out_of_window(kv, request, own_blocks)
    slots, need = num_slots(kv, request, end), need_to_grow(kv, request, own_blocks, end)
    if need > kv.pool.num_free:
        if kv.has_windows:
            count_dead(kv, own_blocks)
        return False
    if need > 0 or kv.has_states:
        for g in range(kv.num_groups):
            group, table = kv.groups[g], own_blocks.tables[g]
            if group.caches_states:
                grow_states(kv, request, group, table, end)
                continue
            group.num_internal -= past_the_end(request, group, table)
            append_blocks(kv.pool, group, table, num_missing(group, table, slots))
            group.num_internal += past_the_end(request, group, table)
    if kv.enable_prefix_caching:
        cache_blocks(kv, request, own_blocks, min(end, request.num_tokens))
    set_next_bookkeeping(kv, request, own_blocks)
    return True


def set_next_bookkeeping(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Set the token count up to which a request only fills its last block and moves its windows."""
    quiet = last_unnamed_end(kv, own_blocks) if kv.enable_prefix_caching else kv.max_model_len
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        # Minus one: the token that fills the last block also sets its key.
        last = end_within(kv, table.length * group.block_size - 1)
        quiet = min(quiet, last_quiet_end(group.kind, kv, request, group, own_blocks, last))
    request.next_bookkeeping_at = 0 if kv.replay_window > 0 else quiet
    if kv.has_windows:
        count_dead(kv, own_blocks)


def last_unnamed_end(kv: KV, own_blocks: RequestBlocks) -> int:
    """Return the token count up to which no group sets a key."""
    if kv.names_by_group:
        if kv.drops_last_block or kv.num_hash_lookahead_tokens > 0 or kv.states.keeps_shared:
            return 0  # keys are also set between multiples of the alignment
        return (own_blocks.num_cached_tokens // kv.alignment + 1) * kv.alignment - 1
    return own_blocks.num_cached_tokens + kv.alignment - 1


def cache_blocks(kv: KV, request: Request, own_blocks: RequestBlocks, num_tokens: int) -> None:
    """Set the keys of the blocks that are full once ``num_tokens`` tokens are computed."""
    if kv.names_by_group:
        cache_by_group(kv, request, own_blocks, num_tokens)
        return
    ahead = kv.num_hash_lookahead_tokens
    num_tokens -= kv.num_unnamed_tokens
    if ahead > 0:  # a separate limit: a key needs the tokens after its block
        num_tokens = min(num_tokens, request.num_tokens - ahead)
    if num_tokens < own_blocks.num_cached_tokens + kv.alignment:
        return
    num_tokens -= num_tokens % kv.alignment
    unit = kv.hash_block_size
    extend_keys(own_blocks, request, num_tokens // unit, unit, kv.num_hash_lookahead_tokens)
    for g in range(kv.num_groups):
        size = kv.groups[g].block_size
        first = max(own_blocks.num_cached_tokens // size, own_blocks.tables[g].num_offered)
        name_blocks(kv, request, own_blocks, g, first, num_tokens // size)
    own_blocks.num_cached_tokens = num_tokens
    set_next_bookkeeping(kv, request, own_blocks)


def name_blocks(
    kv: KV, request: Request, own_blocks: RequestBlocks, g: int, first: int, stop: int
) -> None:
    """Set the keys of a group's blocks from ``first`` to ``stop`` that a later hit could need."""
    group, table = kv.groups[g], own_blocks.tables[g]
    if not group.is_cached:
        return
    all_places, log = keeps_all(group.kind, kv, group), kv.pool.log
    if group.keys_per_block > 1 or kv.has_states:
        drop_names(kv, request, group, table, first, stop)
    if stop - first > 1:
        each = group.keys_per_block
        prefetch_keys(kv.pool, own_blocks.keys, first * each, stop * each, g)
    if kv.pool.short_request != NONE:
        forget_if_shared(kv, own_blocks, first, stop)
    first_key = log.num_keys
    for place in range(max(first, table.num_null), stop):
        if group.has_holes and table.blocks[place] == NULL_BLOCK:
            continue
        if all_places or worth_caching(kv, group, request, place):
            at = (place + 1) * group.keys_per_block - 1
            if stop - first > 1:
                prefetch_key(kv.pool, own_blocks.keys, at, stop * group.keys_per_block - 1, g)
            key = own_blocks.keys[at]
            cache(kv.pool, table.blocks[place], key)
            if group.caches_states:
                kv.states.named_in[table.blocks[place]] = kv.states.step
            if kv.pool.has_events:
                record_key(log, key, place)
    if kv.pool.has_events:
        note_stored(kv, request, own_blocks, group, first, stop, first_key)


def drop_names(
    kv: KV, request: Request, group: KVGroup, table: BlockTable, first: int, stop: int
) -> None:
    """Remove keys that cover only part of a block: the full block gets another key."""
    all_places = keeps_all(group.kind, kv, group)
    for place in range(max(first, table.num_null), stop):
        block = table.blocks[place]
        if group.has_holes and block == NULL_BLOCK:
            continue
        if kv.pool.blocks[block].hashed and (
            all_places or worth_caching(kv, group, request, place)
        ):
            forget(kv.pool, block)
            if kv.pool.num_hash_aliases > 0:
                drop_hash_aliases(kv.pool, block)


def name_tail(kv: KV, request: Request, own_blocks: RequestBlocks, g: int, num_tokens: int) -> None:
    """Set the key of the block in which a prompt ends, up to the prompt's last whole hash unit.

    Look-ups of whole blocks do not find this key, but the block counts as one with content. A block
    that has a key keeps it as well.
    """
    group, table, unit = kv.groups[g], own_blocks.tables[g], kv.hash_block_size
    if group.kind != FULL or group.keys_per_block == 1:
        return
    units = (request.num_prompt_tokens - 1 + group.drops_last_block) // unit
    units = min(units, (request.num_tokens - kv.num_hash_lookahead_tokens) // unit)
    if units % group.keys_per_block == 0 or units * unit > num_tokens:
        return
    place = units // group.keys_per_block
    block, key = table.blocks[place], own_blocks.keys[units - 1]
    is_new = not kv.pool.blocks[block].hashed
    if kv.pool.num_hash_aliases > 0:
        is_new = name_part(kv, own_blocks, block, units, place * group.keys_per_block)
    elif is_new:
        cache(kv.pool, block, key)
    if is_new and kv.pool.has_events:
        record_partial(kv, request, own_blocks, g, units)


def cache_by_group(kv: KV, request: Request, own_blocks: RequestBlocks, num_tokens: int) -> None:
    """Set the keys of full blocks, with a separate limit for each group.

    A group with a drafter's layers sets the key of one more block, which the drafter has processed.
    Token counts are rounded per group first, then limited by the known tokens. If hits may end
    inside a block, keys are also set for states and prompt ends inside blocks.
    """
    ahead, unit, size = kv.num_hash_lookahead_tokens, kv.alignment, kv.hash_block_size
    known = max(min(num_tokens, request.num_tokens - ahead), 0)
    whole, named = num_tokens // unit * unit, max(num_tokens - kv.num_unnamed_tokens, 0)
    extend_keys(own_blocks, request, known // size, size, ahead)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        end, finalized = whole, num_tokens
        if group.has_drafter:
            finalized = named
            if whole > 0:
                end = min(named, named // unit * unit + group.block_size)
        stop = min(end, known) // group.block_size
        if stop > table.num_offered:
            name_blocks(kv, request, own_blocks, g, table.num_offered, stop)
            table.num_offered = stop
        if group.keys_per_block > 1 and group.sees_all:
            name_tail(kv, request, own_blocks, g, end)
        if group.caches_states:
            name_states(kv, request, own_blocks, g, finalized)
    own_blocks.num_cached_tokens = max(whole, own_blocks.num_cached_tokens)
    set_next_bookkeeping(kv, request, own_blocks)


def uncount(kv: KV, request: Request, own_blocks: RequestBlocks, sign: int) -> None:
    """Subtract a live request's tables from the sums over requests, or add them (sign -1)."""
    kv.num_filled -= sign * request.num_filled
    kv.dead_bytes -= sign * own_blocks.dead_bytes
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        group.num_internal -= sign * past_the_end(request, group, table)
        group.num_table_blocks -= sign * table.length


def free_paged(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Free all blocks of a request, last to first, so that tails are evicted before prefixes."""
    if own_blocks.retired:
        count_retired(kv, own_blocks, -1)
    else:
        uncount(kv, request, own_blocks, 1)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        free_blocks(kv.pool, group, table, table.num_null, table.length)
        table.length = 0
        table.num_null = 0


def count_retired(kv: KV, own_blocks: RequestBlocks, sign: int) -> None:
    """Add the slots of an ended request in a static batch to the sums, or subtract (sign -1)."""
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        group.num_retired += sign * (table.length - table.num_null) * group.block_size


def retire_paged(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Record that a request of a static batch has ended; its slots stay until the batch ends."""
    uncount(kv, request, own_blocks, 1)
    count_retired(kv, own_blocks, 1)
