"""Block tables that fork: parallel samples and beams share blocks until one of them writes.

The mechanisms are those of the PagedAttention paper (section 4.4). The sequences of a request share
the blocks of their prompt. A sequence that is about to write into a shared block gets a copy of it
first. A beam that is replaced drops its blocks and shares those of the beam that it continues.

A request's sequences advance together and end together; ``own_blocks.tables`` has a table for each.
The simulator cannot know which beams a model would replace, so it draws them: at every step each
beam continues another one, chosen at random, with the probability ``beam_switch``. The draw depends
only on the request and its length.

Only the last blocks of a request have unfilled slots. The sums for reports count each distinct last
block as if it were a whole table. All last blocks differ once a token of the output is scheduled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.keys import draw_parent
from kvsim.rules.blocks.paged import past_the_end
from kvsim.rules.blocks.pool import allocate_block, free_blocks

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import RequestBlocks
    from kvsim.records.request import Request


def num_blocks_for(kv: KV, request: Request, num_tokens: int) -> int:
    """Return the blocks of all sequences of a request if they share the prompt's full blocks."""
    size = kv.groups[0].block_size
    if num_tokens <= request.num_prompt_tokens:
        return cdiv(num_tokens, size)
    shared = request.num_prompt_tokens // size
    return shared + request.num_samples * (cdiv(num_tokens, size) - shared)


def fits_forked(kv: KV, request: Request) -> bool:
    """Return True if an empty pool has enough blocks for the request up to its end."""
    tokens = min(request.num_prompt_tokens + request.max_tokens, kv.max_model_len)
    return num_blocks_for(kv, request, tokens) <= kv.pool.num_usable


def num_last(request: Request, own_blocks: RequestBlocks) -> int:
    """Return the number of distinct last blocks of a request: one shared, or one per sequence."""
    last = own_blocks.tables[0].length - 1
    if request.num_samples > 1 and (
        own_blocks.tables[0].blocks[last] == own_blocks.tables[1].blocks[last]
    ):
        return 1
    return request.num_samples


def count_forked(kv: KV, request: Request, own_blocks: RequestBlocks, sign: int) -> None:
    """Add a request's last blocks to the sums, or subtract them (sign -1)."""
    group, table, last = kv.groups[0], own_blocks.tables[0], num_last(request, own_blocks)
    kv.num_filled += sign * last * request.num_filled
    group.num_table_blocks += sign * last * table.length
    kv.num_entries += sign * request.num_samples * table.length
    group.num_internal += sign * last * past_the_end(request, group, table)


def admit_forked(kv: KV, request: Request, own_blocks: RequestBlocks, num_tokens: int) -> bool:
    """Allocate a waiting request's blocks; False without a change if too few blocks are free.

    A request that is recomputed after a preemption has output; blocks of outputs are not shared.
    """
    group, pool, size = kv.groups[0], kv.pool, kv.groups[0].block_size
    needed = num_blocks_for(kv, request, num_tokens)
    if needed > pool.num_free - (kv.watermark_blocks if kv.num_held > 0 else 0):
        return False
    length = cdiv(num_tokens, size)
    shared = length
    if num_tokens > request.num_prompt_tokens:
        shared = request.num_prompt_tokens // size
    for place in range(length):
        for s in range(request.num_samples):
            table = own_blocks.tables[s]
            if place < shared and s > 0:
                table.blocks[place] = own_blocks.tables[0].blocks[place]
                pool.blocks[table.blocks[place]].ref_cnt += 1
            else:
                table.blocks[place] = allocate_block(pool, group)
    for s in range(request.num_samples):
        own_blocks.tables[s].length = length
    group.num_used += needed
    own_blocks.num_blocks = needed
    request.num_filled = num_tokens
    count_forked(kv, request, own_blocks, 1)
    return True


def allocate_forked(kv: KV, request: Request, num_tokens: int) -> bool:
    """Allocate slots for the next tokens of every sequence; False if there is no room."""
    end = request.num_computed_tokens + num_tokens
    if end > request.next_bookkeeping_at:
        return grow_forked(kv, request, kv.request_blocks[request.own_blocks], end)
    kv.num_filled += request.num_samples * (end - request.num_filled)
    request.num_filled = end
    return True


def grow_forked(kv: KV, request: Request, own_blocks: RequestBlocks, end: int) -> bool:
    """Append blocks to every sequence, and copy shared ones before a write; False without room."""
    n, group = request.num_samples, kv.groups[0]
    length = own_blocks.tables[0].length
    num_new = cdiv(end, group.block_size) - length
    writes = request.num_filled < length * group.block_size  # into the last blocks
    switched = choose_parents(kv, request, end)
    kept = count_pinned(kv, request, own_blocks, length) if switched else own_blocks.num_blocks
    num_copies = n - count_writers(kv, request, own_blocks, length) if writes else 0
    if kept + num_copies + n * num_new > own_blocks.num_blocks + kv.pool.num_free:
        return False
    count_forked(kv, request, own_blocks, -1)
    if switched:
        follow_parents(kv, request, own_blocks, length)
    for s in range(n):
        table = own_blocks.tables[s]
        if writes:
            copy_shared(kv, table.blocks, length - 1)
        for place in range(length, length + num_new):
            table.blocks[place] = allocate_block(kv.pool, group)
        table.length = length + num_new
    group.num_used += num_copies + n * num_new
    own_blocks.num_blocks = kept + num_copies + n * num_new
    kv.num_copied_blocks += num_copies
    request.num_filled = end
    if kv.beam_switch == 0.0 or n == 1:
        request.next_bookkeeping_at = (length + num_new) * group.block_size
    count_forked(kv, request, own_blocks, 1)
    return True


def copy_shared(kv: KV, blocks: list[int], place: int) -> None:
    """Replace a table's shared block by a new one; the last sequence keeps the old block."""
    old = kv.pool.blocks[blocks[place]]
    if old.ref_cnt > 1:
        blocks[place] = allocate_block(kv.pool, kv.groups[0])
        old.ref_cnt -= 1


def choose_parents(kv: KV, request: Request, end: int) -> bool:
    """Draw the parent of each sequence; return True if any sequence continues another one."""
    n, switched = request.num_samples, False
    for s in range(n):
        kv.parents[s] = s
    if kv.beam_switch > 0.0 and n > 1:
        for s in range(n):
            kv.parents[s] = draw_parent(request.request_id, end, s, n, kv.beam_switch)
            switched = switched or kv.parents[s] != s
    return switched


def is_first(kv: KV, block: int) -> bool:
    """Mark a block; return True if it was not marked."""
    first = kv.pool.num_seen[block] == 0
    kv.pool.num_seen[block] = 1
    return first


def count_writers(kv: KV, request: Request, own_blocks: RequestBlocks, length: int) -> int:
    """Count the distinct last blocks once every sequence continues its parent."""
    count = 0
    for s in range(request.num_samples):
        count += is_first(kv, own_blocks.tables[kv.parents[s]].blocks[length - 1])
    for s in range(request.num_samples):
        kv.pool.num_seen[own_blocks.tables[s].blocks[length - 1]] = 0
    return count


def first_fork(request: Request, own_blocks: RequestBlocks, length: int) -> int:
    """Return the first index at which the sequences do not all share the same block."""
    place = length
    while place > 0:
        first, shared = own_blocks.tables[0].blocks[place - 1], True
        for s in range(1, request.num_samples):
            shared = shared and own_blocks.tables[s].blocks[place - 1] == first
        if shared:
            return place
        place -= 1
    return 0


def count_pinned(kv: KV, request: Request, own_blocks: RequestBlocks, length: int) -> int:
    """Count the distinct blocks that stay in use once every sequence continues its parent."""
    fork = first_fork(request, own_blocks, length)
    count = fork
    for s in range(request.num_samples):
        table = own_blocks.tables[kv.parents[s]]
        for place in range(fork, length):
            count += is_first(kv, table.blocks[place])
    unmark(kv, request, own_blocks, fork)
    return count


def unmark(kv: KV, request: Request, own_blocks: RequestBlocks, first: int) -> None:
    """Clear the marks of a request's blocks from an index on."""
    for s in range(request.num_samples):
        table = own_blocks.tables[s]
        for place in range(first, table.length):
            kv.pool.num_seen[table.blocks[place]] = 0


def follow_parents(kv: KV, request: Request, own_blocks: RequestBlocks, length: int) -> None:
    """Copy the parent's block table to every sequence; blocks in no table become free."""
    n, blocks = request.num_samples, kv.pool.blocks
    fork = first_fork(request, own_blocks, length)
    for s in range(n):
        parent = own_blocks.tables[kv.parents[s]]
        for place in range(fork, length):
            blocks[parent.blocks[place]].ref_cnt += 1
    for s in range(n):
        free_blocks(kv.pool, kv.groups[0], own_blocks.tables[s], fork, length)
    for place in range(fork, length):
        for s in range(n):
            kv.column[s] = own_blocks.tables[s].blocks[place]
        for s in range(n):
            own_blocks.tables[s].blocks[place] = kv.column[kv.parents[s]]


def drop_tables(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Free all blocks of a request, but leave their ids in its tables."""
    count_forked(kv, request, own_blocks, -1)
    for s in range(request.num_samples):
        table = own_blocks.tables[s]
        free_blocks(kv.pool, kv.groups[0], table, 0, table.length)


def free_forked(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Free all blocks of a request, sequence by sequence, each from the last block to the first."""
    drop_tables(kv, request, own_blocks)
    own_blocks.num_blocks = 0
    for s in range(request.num_samples):
        own_blocks.tables[s].length = 0
