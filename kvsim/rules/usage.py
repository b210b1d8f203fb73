"""Use and waste of KV memory at one instant: every byte by its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.rules.trees import measure_radix, radix_usage
from kvsim.records.kv import CONTIGUOUS, OWN, RADIX, VIRTUAL
from kvsim.rules.blocks.window import bytes_out_of_window
from kvsim.rules.kv import has_pool
from kvsim.rules.managers.contiguous import measure_contiguous
from kvsim.rules.managers.own import measure_own
from kvsim.rules.managers.virtual import measure_virtual
from kvsim.rules.python import python_kv_usage, python_measure
from kvsim.rules.waiting_for_kv import num_queued

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.kv import KV


def measure(kv: KV) -> None:
    """Set ``kv.usage`` to the bytes of KV memory by cause."""
    if has_pool(kv):
        measure_paged(kv)
    elif kv.manager == CONTIGUOUS:
        measure_contiguous(kv)
    elif kv.manager == VIRTUAL:
        measure_virtual(kv)
    elif kv.manager == RADIX:
        measure_radix(kv)
    elif kv.manager == OWN:
        measure_own(kv)
    else:
        python_measure(kv)


def kv_usage(kv: KV) -> float:
    """Return the share of the blocks (or slots, or pages) in use, 0 to 1."""
    if kv.manager == CONTIGUOUS:
        memory = kv.contiguous
        return memory.num_size / memory.num_slots if memory.num_slots > 0 else 0.0
    if kv.manager == VIRTUAL:
        pages, free = kv.virtual.num_pages, kv.virtual.num_free_pages
        return (pages - free) / pages if pages > 0 else 0.0
    if kv.manager == RADIX:
        return radix_usage(kv.radix)
    if kv.manager == OWN:
        return kv.own.num_allocated / kv.own.num_slots if kv.own.num_slots > 0 else 0.0
    if not has_pool(kv):
        return python_kv_usage(kv)
    if kv.pool.num_usable == 0:
        return 0.0
    return (kv.pool.num_usable - kv.pool.num_free) / kv.pool.num_usable


def measure_paged(kv: KV) -> None:
    """Set ``kv.usage``, in bytes, from the sums over all block tables of a paged cache."""
    tokens, reserved, internal, external = 0, 0, 0, 0
    for g in range(kv.num_groups):
        group = kv.groups[g]
        size, slot = group.block_size, group.slot_bytes
        if group.is_state:  # a state is live as long as a request holds it
            pinned = group.num_pinned if kv.pool.tracks_pins else 0
            tokens += (group.num_used - pinned) * group.state_bytes
            reserved += pinned * group.state_bytes
            external += group.num_used * (kv.bytes_per_block - group.state_bytes)
            continue
        unfilled = group.num_table_blocks * size - kv.num_filled
        dead = group.num_retired
        reserved += (unfilled - group.num_internal) * slot
        internal += (group.num_internal + dead) * slot
        tokens += (group.num_used * size - unfilled - dead) * slot
        external += group.num_used * (kv.bytes_per_block - size * slot)
        if kv.pool.tracks_pins:  # for a transfer
            reserved += group.num_pinned * size * slot
            tokens -= group.num_pinned * size * slot
    outside = bytes_out_of_window(kv) if kv.has_windows else 0
    usage = kv.usage
    usage.token_states = tokens - outside
    usage.reservation = reserved
    usage.internal = internal + outside
    usage.external = external
    usage.unallocated = kv.pool.num_free * kv.bytes_per_block
    usage.cached = kv.pool.num_cached * kv.bytes_per_block


def is_refused(state: Replica) -> bool:
    """Return True if the head of the queue is refused for lack of KV memory.

    The last admission attempt decides; limits other than memory do not count. While the head is
    refused, all free memory is external fragmentation.
    """
    return state.refused and num_queued(state) > 0
