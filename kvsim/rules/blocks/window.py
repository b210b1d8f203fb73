"""Windows over paged memory: blocks that no later token sees, and partly dead blocks.

A sliding window or a chunk moves with the tokens that are known to be computed. Blocks before the
window are freed when their request grows. The block in which the window starts is partly dead. Its
dead bytes are counted incrementally unless requests share the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import (
    cdiv,
    drop_unseen,
    has_unseen,
    loses_token,
    num_skipped,
)
from kvsim.rules.blocks.pool import free_blocks

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, KVGroup, RequestBlocks
    from kvsim.records.request import Request


def num_processed(kv: KV, request: Request) -> int:
    """Return the number of tokens that are known to be computed."""
    return max(0, min(request.num_computed_tokens, kv.max_model_len) - request.num_in_flight_tokens)


def drop_out_of_window(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Free a request's blocks that lie outside the attention window of all later tokens."""
    own_blocks.num_processed_tokens = num_processed(kv, request)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        drop_unseen(group.kind, kv, request, group, table, own_blocks.num_processed_tokens)


def drop_leading(kv: KV, group: KVGroup, table: BlockTable, num_processed: int) -> None:
    """Free the blocks before the first token that later tokens see."""
    stop = num_skipped(group.kind, group.window, num_processed) // group.block_size
    if stop > table.num_null:
        free_blocks(kv.pool, group, table, table.num_null, stop)
        for place in range(table.num_null, stop):
            table.blocks[place] = NULL_BLOCK
        table.num_null = stop


def is_past_window(group: KVGroup, table: BlockTable, num_processed: int) -> bool:
    """Return True if a request has a block before the first token that later tokens see."""
    skipped = num_skipped(group.kind, group.window, num_processed)
    return skipped // group.block_size > table.num_null


def drop_gap(
    kv: KV, request: Request, group: KVGroup, table: BlockTable, num_processed: int
) -> None:
    """Free the blocks between the leading tokens and the window; both stay.

    A block that the gap covers only in part stays and counts as live.
    """
    leading = request.num_prompt_tokens
    stop = max(leading, num_processed - group.reference_window) // group.block_size
    first = stop
    while first > cdiv(leading, group.block_size) and table.blocks[first - 1] != NULL_BLOCK:
        first -= 1
    free_blocks(kv.pool, group, table, first, stop)
    for place in range(first, stop):
        table.blocks[place] = NULL_BLOCK


def first_to_leave(group: KVGroup, table: BlockTable) -> int:
    """Return the number of processed tokens at which a window starts to leave its first block."""
    return table.num_null * group.block_size + group.window - 1


def count_dead(kv: KV, own_blocks: RequestBlocks) -> None:
    """Count the dead bytes in the blocks in which windows start, and their growth per token."""
    dead, rate = 0, 0
    for g in range(kv.num_groups):
        group = kv.groups[g]
        if group.window > 0:
            dead += num_dead(group, own_blocks) * group.slot_bytes
            rate += loses_token(group.kind, group, own_blocks) * group.slot_bytes
    kv.dead_bytes += dead - own_blocks.dead_bytes
    own_blocks.dead_bytes = dead
    own_blocks.dead_rate = rate


def move_windows(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Move the windows of a request within their blocks, and add the dead bytes to the sum."""
    kv.dead_bytes += move_own_windows(kv, request, own_blocks)


def move_own_windows(kv: KV, request: Request, own_blocks: RequestBlocks) -> int:
    """As :func:`move_windows`, but return the bytes that become dead instead of adding them."""
    processed = num_processed(kv, request)
    dead = (processed - own_blocks.num_processed_tokens) * own_blocks.dead_rate
    own_blocks.num_processed_tokens = processed
    own_blocks.dead_bytes += dead
    return dead


def leaves_block(kv: KV, request: Request, own_blocks: RequestBlocks) -> bool:
    """Return True if a request frees blocks out of its window when it grows."""
    processed = num_processed(kv, request)
    for g in range(kv.num_groups):
        group, table = kv.groups[g], own_blocks.tables[g]
        if has_unseen(group.kind, group, table, processed):
            return True
    return False


def num_dead(group: KVGroup, own_blocks: RequestBlocks) -> int:
    """Return the number of slots out of the window in the block where the window starts."""
    if dead_block(group, own_blocks) in (NONE, NULL_BLOCK):
        return 0
    skipped = num_skipped(group.kind, group.window, own_blocks.num_processed_tokens)
    return skipped % group.block_size


def dead_block(group: KVGroup, own_blocks: RequestBlocks) -> int:
    """Return the block with slots before and inside the window, or NONE."""
    skipped = num_skipped(group.kind, group.window, own_blocks.num_processed_tokens)
    place, table = skipped // group.block_size, own_blocks.tables[group.index]
    if skipped % group.block_size == 0 or place >= table.length or own_blocks.retired:
        return NONE
    return table.blocks[place]


def bytes_out_of_window(kv: KV) -> int:
    """Return the bytes of tokens out of their window, in the blocks where windows start."""
    if kv.pool.num_shared == 0:
        return kv.dead_bytes
    total = 0
    for g in range(kv.num_groups):
        if kv.groups[g].window > 0:
            total += out_of_window(kv, kv.groups[g]) * kv.groups[g].slot_bytes
    return total


def out_of_window(kv: KV, group: KVGroup) -> int:
    """Return the number of slots out of a group's windows in the blocks where these start.

    A slot of a shared block counts if it is before the windows of all requests that share it.
    """
    total, num_shared, pool = 0, 0, kv.pool
    for h in range(kv.num_request_blocks):
        if kv.request_blocks[h].request == NONE:
            continue
        dead, block = num_dead(group, kv.request_blocks[h]), dead_block(group, kv.request_blocks[h])
        if dead == 0:
            continue
        if pool.blocks[block].ref_cnt == 1:
            total += dead
            continue
        num_shared += 1
        if pool.num_seen[block] > 0:
            dead = min(dead, pool.fewest_dead[block])
        pool.num_seen[block] += 1
        pool.fewest_dead[block] = dead
        if pool.num_seen[block] == pool.blocks[block].ref_cnt:
            total += dead
    if num_shared > 0:
        clear_shared_marks(kv, group)
    return total


def clear_shared_marks(kv: KV, group: KVGroup) -> None:
    """Clear the marks that :func:`out_of_window` has set on shared blocks."""
    for h in range(kv.num_request_blocks):
        if kv.request_blocks[h].request != NONE:
            block = dead_block(group, kv.request_blocks[h])
            if block != NONE:
                kv.pool.num_seen[block] = 0
