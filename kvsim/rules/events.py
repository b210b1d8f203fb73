"""KV cache events: a log of the keys that are stored in and removed from the pool.

A consumer of the log knows the number of blocks per key in the pool after every update.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.events import CLEARED, REMOVED, STORED, UPDATE
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.events import Event, EventLog
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool, KVGroup, RequestBlocks
    from kvsim.records.request import Request


def is_short_of_room(log: EventLog) -> bool:
    """Return True if the log lacks room for a step, so the host must read it first."""
    return max(log.num_events, log.num_keys) > log.room - log.reserve


def next_event(log: EventLog, kind: int, group: int) -> Event:
    """Return the record of a new event; if the log is full, the last one is overwritten."""
    event = log.events[log.num_events]
    event.kind = kind
    event.group = group
    log.is_open = kind != UPDATE
    if log.num_events < log.room - 1:
        log.num_events += 1
    else:
        log.num_lost += 1
    return event


def record_key(log: EventLog, key: int, place: int) -> None:
    """Append the key of a block to the log; a later event refers to it."""
    log.keys[log.num_keys] = key
    log.places[log.num_keys] = place
    if log.num_keys < log.room - 1:
        log.num_keys += 1
    else:
        log.num_lost += 1


def note_stored(
    kv: KV,
    request: Request,
    own_blocks: RequestBlocks,
    group: KVGroup,
    first: int,
    stop: int,
    first_key: int,
) -> None:
    """Record a STORED event for blocks ``first`` to ``stop``, with the keys since ``first_key``."""
    if stop > first:
        units = first * group.keys_per_block
        record_stored(
            kv, request, own_blocks, group.index, group.block_size, units, first, stop, first_key
        )


def record_partial(
    kv: KV, request: Request, own_blocks: RequestBlocks, group: int, units: int
) -> None:
    """Record a STORED event for the key of a part of a block, up to hash unit ``units``."""
    log = kv.pool.log
    first_key = log.num_keys
    record_key(log, own_blocks.keys[units - 1], units - 1)
    size = kv.hash_block_size
    record_stored(kv, request, own_blocks, group, size, units - 1, units - 1, units, first_key)


def record_stored(
    kv: KV,
    request: Request,
    own_blocks: RequestBlocks,
    group: int,
    size: int,
    units: int,
    first: int,
    stop: int,
    first_key: int,
) -> None:
    """Record a STORED event for blocks of ``size`` tokens; ``units`` hash units precede them."""
    event = next_event(kv.pool.log, STORED, group)
    event.row = request.request_id
    event.block_size = size
    event.first = first * size
    event.stop = stop * size
    event.has_parent = int(units > 0)
    event.key = own_blocks.keys[units - 1] if units > 0 else 0
    event.first_key = first_key
    event.key_count = kv.pool.log.num_keys - first_key


def record_removed(pool: BlockPool, k: int) -> None:
    """Record that a block lost its key; consecutive removals share one entry of the log."""
    log, block = pool.log, pool.blocks[k]
    last = log.events[max(log.num_events - 1, 0)]
    first_key = log.num_keys
    record_key(log, block.key, NONE)
    if (
        log.num_events > 0
        and last.kind == REMOVED
        and last.group == block.group
        and last.first_key + last.key_count == first_key
    ):
        last.key_count += log.num_keys - first_key
        return
    event = next_event(log, REMOVED, block.group)
    event.first_key = first_key
    event.key_count = log.num_keys - first_key


def record_cleared(log: EventLog) -> None:
    """Record that all blocks lost their keys."""
    event = next_event(log, CLEARED, 0)
    event.first_key = log.num_keys
    event.key_count = 0


def record_update(log: EventLog, time: float) -> None:
    """Close the events of a scheduler update, if any, with an UPDATE event at a time in seconds."""
    if log.is_open:
        event = next_event(log, UPDATE, 0)
        event.time = time
