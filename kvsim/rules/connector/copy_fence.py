"""Blocks that a step copies; a fence holds source and copy until the step's output is processed.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.blocks.mamba import release_copies
from kvsim.rules.blocks.pool import drop_references, queue_unhashed

if TYPE_CHECKING:
    from kvsim.records.connector import Connector
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.kv import KV


def release_or_fence_copies(state: Replica, batch: Batch) -> None:
    """Free the sources and copies of the step just scheduled, at once or when its fence lifts."""
    if not state.connector.has_fence:
        release_copies(state.kv)
    elif state.kv.states.num_held > 0:
        fence_copies(state.connector, state.kv, batch)


def fence_copies(connector: Connector, kv: KV, batch: Batch) -> None:
    """Append the copied pairs of a step to the fenced entries, the last pair first."""
    states, table = kv.states, connector.copies
    for g in range(kv.num_groups - 1, -1, -1):
        for k in range(states.num_held - 1, -1, -1):
            if states.copy_groups[k] == g:
                connector.copy_groups[table.length // 2] = g
                for place in range(2 * k, 2 * k + 2):  # the copy, then its source
                    table.blocks[table.length] = states.copies.blocks[place]
                    table.length += 1
                    pin_copy(connector, kv, table.length - 1, 1)
    connector.fenced[connector.num_fenced] = NONE
    connector.fences[connector.num_fenced] = connector.num_steps + (batch.size == 0)
    connector.num_copies[connector.num_fenced] = states.num_held
    connector.num_fenced += 1
    states.num_held = 0


def pin_copy(connector: Connector, kv: KV, place: int, sign: int) -> None:
    """Pin the fenced block at index ``place``, a source or a copy, or unpin it (sign -1)."""
    pool, k = kv.pool, connector.copies.blocks[place]
    group = kv.groups[connector.copy_groups[place // 2]]
    if sign < 0 and pool.pin_counts[k] == pool.blocks[k].ref_cnt:
        group.num_pinned -= 1
    pool.pin_counts[k] += sign
    if sign > 0 and pool.pin_counts[k] == pool.blocks[k].ref_cnt:
        group.num_pinned += 1


def free_copies(connector: Connector, kv: KV, num_pairs: int) -> None:
    """Free the first ``num_pairs`` fenced pairs, last to first: each source, then its copy."""
    table = connector.copies
    for place in range(2 * num_pairs):
        pin_copy(connector, kv, place, -1)
    for k in range(num_pairs - 1, -1, -1):
        group = kv.groups[connector.copy_groups[k]]
        drop_references(kv.pool, group, table, 2 * k, 2 * k + 2)
    queue_unhashed(kv.pool, table, 0, 2 * num_pairs)
    table.length -= 2 * num_pairs
    for place in range(table.length):
        table.blocks[place] = table.blocks[place + 2 * num_pairs]
    for k in range(table.length // 2):
        connector.copy_groups[k] = connector.copy_groups[k + num_pairs]
