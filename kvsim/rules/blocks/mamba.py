"""States of Mamba and linear-attention layers that later requests can reuse (mode ``align``).

Slot p of a table stands for the state after (p + 1) * block_size tokens. Most slots are null: a
prompt chunk leaves one state, at its end, and decoding leaves one at every block end. The states
for drafts follow the running state in the table and move with it.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.attention import cdiv, keeps_all, worth_caching
from kvsim.rules.blocks.checkpoint import last_state, takes_checkpoint
from kvsim.rules.blocks.partial_keys import copy_hit, copy_own
from kvsim.rules.blocks.pool import append_blocks, cache, forget, free_blocks
from kvsim.rules.events import record_partial

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockTable, KVGroup, RequestBlocks
    from kvsim.records.request import Request


def begin_states(kv: KV) -> None:
    """Start a step: release the copies of the last step, and mark its new states as readable."""
    release_copies(kv)
    kv.states.step += 1
    kv.states.num_copies = 0


def release_copies(kv: KV) -> None:
    """Free the sources and targets of a step's copies, group by group."""
    states = kv.states
    for g in range(kv.num_groups):
        for k in range(states.num_held):
            if states.copy_groups[k] == g:
                free_blocks(kv.pool, kv.groups[g], states.copies, 2 * k, 2 * k + 2)
    states.num_held = 0


def is_new(kv: KV, k: int) -> bool:
    """Return True if any copy of a block's content got its key in this step.

    The state is computed only during this step, so no request can continue from it yet.
    """
    while k != NONE:
        if kv.states.named_in[k] == kv.states.step:
            return True
        k = kv.pool.blocks[k].copy
    return False


def num_needed(kv: KV, group: KVGroup, need: int, start: int, end: int, spare: int) -> int:
    """Return the blocks that a chunk allocates in a table of states with ``need`` missing slots.

    The slots between the old running state and the new one stay null. ``spare`` is the number of
    states for drafts that the table still lacks.
    """
    if need > 0:
        need = min(need, 1 + spare)
    return need + takes_checkpoint(kv, group, start, end)


def states_to_admit(kv: KV, own_blocks: RequestBlocks, g: int, end: int, hit: int) -> int:
    """Return the free blocks that an admission needs for states.

    If the admission must wait for a state, return more blocks than the pool has.
    """
    group, table = kv.groups[g], own_blocks.tables[g]
    found, spare = cdiv(hit, group.block_size), group.num_spec_blocks
    need = cdiv(end, group.block_size) + spare - found
    if hit % group.block_size > 0:
        need = max(need, 0) + 1
        spare += 1
    need = num_needed(kv, group, need, hit, end, spare)
    if found == 0:
        return need
    block = table.blocks[found - 1]
    if block == NULL_BLOCK:
        return need
    if is_new(kv, block):
        return kv.pool.num_usable + 1
    return need + (kv.pool.blocks[block].ref_cnt == 0)


def states_to_grow(kv: KV, request: Request, group: KVGroup, table: BlockTable, end: int) -> int:
    """Return the free blocks that a request's next tokens need for states; may be negative."""
    need = cdiv(end, group.block_size) + group.num_spec_blocks - table.length
    spare = 0
    if kv.states.pending[request.own_blocks * kv.num_groups + group.index] != NONE:
        need = max(need, 0) + 1
        spare = 1
    return num_needed(kv, group, need, request.num_computed_tokens, end, spare)


def add_state(kv: KV, group: KVGroup, table: BlockTable, block: int) -> None:
    table.blocks[table.length] = block
    table.length += 1
    group.num_table_blocks += 1


def admit_states(
    kv: KV, request: Request, group: KVGroup, table: BlockTable, end: int, hit: int
) -> None:
    """Allocate the states of an admission; the hit's state is already in the table."""
    kv.states.pending[request.own_blocks * kv.num_groups + group.index] = NONE
    partial = hit % group.block_size > 0
    if partial:
        copy_hit(kv, group, table)
    slots = cdiv(end, group.block_size) + group.num_spec_blocks
    if slots > table.length:
        append_states(kv, group, table, slots, 0, takes_checkpoint(kv, group, hit, end), end)


def grow_states(kv: KV, request: Request, group: KVGroup, table: BlockTable, end: int) -> None:
    """Allocate the states of the next tokens of a running request."""
    at = request.own_blocks * kv.num_groups + group.index
    if kv.states.pending[at] != NONE:
        copy_own(kv, group, table.blocks[kv.states.pending[at]])
        kv.states.pending[at] = NONE
    slots = cdiv(end, group.block_size) + group.num_spec_blocks
    if slots > table.length:
        leaves = takes_checkpoint(kv, group, request.num_computed_tokens, end)
        append_states(kv, group, table, slots, group.num_spec_blocks, leaves, end)


def last_quiet_state(kv: KV, request: Request, group: KVGroup, table: BlockTable, last: int) -> int:
    """Return the token count up to which a request allocates, drops and copies no state.

    ``last`` is the token count at the end of its table, states for drafts included.
    """
    at = request.own_blocks * kv.num_groups + group.index
    if group.caches_states and kv.states.pending[at] != NONE:
        return 0
    last -= group.num_spec_blocks * group.block_size
    return min(last, (table.num_null + 1) * group.block_size + 1)


def append_states(
    kv: KV, group: KVGroup, table: BlockTable, slots: int, num_moved: int, leaves: bool, end: int
) -> None:
    """Grow a table to ``slots`` slots: append null blocks, move the states for drafts, add blocks.

    ``num_moved`` is the number of states for drafts that move. With ``leaves``, the chunk leaves a
    checkpoint in the slot before the running state.
    """
    old, first = table.length, slots - group.num_spec_blocks - 1 - leaves
    for _ in range(old, first):
        add_state(kv, group, table, NULL_BLOCK)
    if leaves:
        kv.states.checkpoints[group.index] = first
        kv.states.checkpoint_end = last_state(kv, end, kv.alignment)
        if first >= old:
            append_blocks(kv.pool, group, table, 1)
    for place in range(old - num_moved, min(old, first)):
        add_state(kv, group, table, table.blocks[place])
        table.blocks[place] = NULL_BLOCK
    append_blocks(kv.pool, group, table, slots - table.length)


def name_states(
    kv: KV, request: Request, own_blocks: RequestBlocks, g: int, num_tokens: int
) -> None:
    """Set the key of a state that ends inside a block, and that of the chunk's checkpoint."""
    states, prompt = kv.states, request.num_prompt_tokens
    if kv.matches_partially and num_tokens > 0:
        shared = request.shared_prefix_boundary
        if num_tokens == last_state(kv, prompt, kv.hash_block_size) or (
            states.keeps_shared and num_tokens == shared <= prompt
        ):
            name_state(kv, request, own_blocks, g, num_tokens)
    if states.checkpoints[g] != NONE:
        name_checkpoint(kv, request, own_blocks, g)
        states.checkpoints[g] = NONE


def name_state(
    kv: KV, request: Request, own_blocks: RequestBlocks, g: int, num_tokens: int
) -> None:
    """Set the key of the running state; if it ends inside a block, mark it for a copy."""
    group = kv.groups[g]
    place = cdiv(num_tokens, group.block_size) - 1
    block = own_blocks.tables[g].blocks[place]
    key = own_blocks.keys[num_tokens // kv.hash_block_size - 1]
    if block == NULL_BLOCK or has_key(kv, block, key):
        return
    set_key(kv, block, key)
    if kv.pool.has_events:
        record_partial(kv, request, own_blocks, g, num_tokens // kv.hash_block_size)
    if num_tokens % group.block_size > 0:
        kv.states.pending[request.own_blocks * kv.num_groups + g] = place


def name_checkpoint(kv: KV, request: Request, own_blocks: RequestBlocks, g: int) -> None:
    """Set the key of the chunk's checkpoint if a later hit could need it; else remove its key."""
    states, group = kv.states, kv.groups[g]
    end, block = states.checkpoint_end, own_blocks.tables[g].blocks[states.checkpoints[g]]
    key = own_blocks.keys[end // kv.hash_block_size - 1]
    if is_pinned(kv, group, request, end):
        if not has_key(kv, block, key):
            set_key(kv, block, key)
            if kv.pool.has_events:
                record_partial(kv, request, own_blocks, g, end // kv.hash_block_size)
    elif kv.pool.blocks[block].hashed:
        forget(kv.pool, block)


def is_pinned(kv: KV, group: KVGroup, request: Request, end: int) -> bool:
    """Return True if a later hit could end with the state after ``end`` tokens."""
    if end == last_state(kv, request.num_prompt_tokens, kv.alignment):
        return True
    if end == request.shared_prefix_boundary or keeps_all(group.kind, kv, group):
        return True
    place = end // group.block_size - 1
    return end % group.block_size == 0 and worth_caching(kv, group, request, place)


def has_key(kv: KV, k: int, key: int) -> bool:
    return kv.pool.blocks[k].hashed and kv.pool.blocks[k].key == key


def set_key(kv: KV, k: int, key: int) -> None:
    """Set or replace the key of a state."""
    if kv.pool.blocks[k].hashed:
        forget(kv.pool, k)
    cache(kv.pool, k, key)
    kv.states.named_in[k] = kv.states.step
