"""The causes of waste: what every byte of KV memory is used for at one instant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.kv import CONTIGUOUS, VIRTUAL
from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.attention import num_skipped
from kvsim.rules.contiguous import measure_contiguous
from kvsim.rules.kv import has_pool
from kvsim.rules.python import python_kv_usage, python_measure
from kvsim.rules.virtual import measure_virtual

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV
    from kvsim.records.paged import Holding, KVGroup


def measure(kv: KV) -> None:
    """Bring ``kv.usage`` up to date."""
    if has_pool(kv):
        measure_paged(kv)
    elif kv.manager == CONTIGUOUS:
        measure_contiguous(kv)
    elif kv.manager == VIRTUAL:
        measure_virtual(kv)
    else:
        python_measure(kv)


def kv_usage(kv: KV) -> float:
    """Share of the blocks (or slots) in use, 0 to 1."""
    if kv.manager == CONTIGUOUS:
        memory = kv.contiguous
        return memory.num_size / memory.num_slots if memory.num_slots > 0 else 0.0
    if kv.manager == VIRTUAL:
        pages, free = kv.virtual.num_pages, kv.virtual.num_free_pages
        return (pages - free) / pages if pages > 0 else 0.0
    if not has_pool(kv):
        return python_kv_usage(kv)
    if kv.pool.num_usable == 0:
        return 0.0
    return (kv.pool.num_usable - kv.pool.num_free) / kv.pool.num_usable


def measure_paged(kv: KV) -> None:
    """Count a paged cache's slots by cause, from sums over all block tables."""
    tokens, reserved, internal, external = 0, 0, 0, 0
    for g in range(kv.num_groups):
        group = kv.groups[g]
        size, slot = group.block_size, group.slot_bytes
        unfilled = group.num_table_blocks * size - kv.num_filled
        dead = group.num_retired
        if group.window > 0:
            dead += out_of_window(kv, group)
        reserved += (unfilled - group.num_internal) * slot
        internal += (group.num_internal + dead) * slot
        tokens += (group.num_used * size - unfilled - dead) * slot
        external += group.num_used * (kv.bytes_per_block - size * slot)
    usage = kv.usage
    usage.token_states = tokens
    usage.reservation = reserved
    usage.internal = internal
    usage.external = external
    usage.unallocated = kv.pool.num_free * kv.bytes_per_block
    usage.cached = kv.pool.num_cached * kv.bytes_per_block


def dead_block(group: KVGroup, holding: Holding) -> int:
    """Return the block that a window has partly left, or NONE."""
    skipped = num_skipped(group.kind, group.window, holding.num_processed_tokens)
    place, table = skipped // group.block_size, holding.tables[group.index]
    if skipped % group.block_size == 0 or place >= table.length or holding.retired:
        return NONE
    return table.blocks[place]


def out_of_window(kv: KV, group: KVGroup) -> int:
    """Slots before the window in blocks that the window still touches.

    A block that several requests share is out of the window where it is so for all of them.
    """
    total, num_shared, pool = 0, 0, kv.pool
    for h in range(kv.num_holdings):
        if kv.holdings[h].request == NONE:
            continue
        block = dead_block(group, kv.holdings[h])
        if block in (NONE, NULL_BLOCK):
            continue
        skipped = num_skipped(group.kind, group.window, kv.holdings[h].num_processed_tokens)
        dead = skipped % group.block_size
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
        forget_seen(kv, group)
    return total


def forget_seen(kv: KV, group: KVGroup) -> None:
    """Clear the marks of blocks that requests share."""
    for h in range(kv.num_holdings):
        if kv.holdings[h].request != NONE:
            block = dead_block(group, kv.holdings[h])
            if block != NONE:
                kv.pool.num_seen[block] = 0


def is_refused(state: Replica) -> bool:
    """Whether the head of the queue stands refused for lack of KV room.

    Set by the last admission attempt and kept until the next; limits other than memory do not
    refuse. All free memory is external waste while it does.
    """
    return state.refused and state.waiting.length > 0
