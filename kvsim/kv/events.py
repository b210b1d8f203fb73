"""Lay out, widen and read the log of a replica's KV cache events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.records.events import Event
from kvsim.records.memory import Views, head
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.records.kv import KV
    from kvsim.records.memory import Memory
    from kvsim.records.paged import BlockPool

#: Events that the log can hold before Python code must read it.
EVENTS_PER_READING = 1 << 16


class EventRows(NamedTuple):
    """Events in order, as rows of :class:`kvsim.records.events.Event`, and their keys."""

    events: NDArray[Any]
    keys: NDArray[np.int64]
    places: NDArray[np.int64]


def init_events(kv: KV, memory: Memory, step_tokens: int) -> None:
    """Lay out a log for a paged cache; ``step_tokens`` is the most tokens in flight."""
    groups = [kv.groups[g] for g in range(kv.num_groups)]
    blocks = len(kv.pool.blocks)
    # In a step, every block may be removed and stored, and again after a preemption; each request
    # has one stored event per group.
    smallest = min(group.block_size for group in groups)
    reserve = (4 + 4 * len(groups)) * blocks + 2 * len(groups) * cdiv(step_tokens, smallest)
    init_log(kv.pool, memory, reserve)


def init_log(pool: BlockPool, memory: Memory, reserve: int) -> None:
    """Lay out a log for steps of at most ``reserve`` events."""
    pool.has_events = True
    log = pool.log
    log.reserve = reserve
    log.room = log.reserve + EVENTS_PER_READING
    log.events = memory.room(Event, log.room)
    log.keys, log.places = memory.ints(log.room), memory.ints(log.room)


def widen(pool: BlockPool, memory: Memory) -> None:
    """Double the capacity of a log; its events stay. Mutates."""
    log = pool.log
    room = 2 * log.room
    longer: dict[str, Any] = {
        "events": memory.room(Event, room),
        "keys": memory.ints(room),
        "places": memory.ints(room),
    }
    for name, new in longer.items():
        new.array[: log.room] = getattr(log, name).array[: log.room]
        memory.replace(log, **{name: new})
    log.room = room


def take_events(pool: BlockPool) -> EventRows:
    """Return the events of the log, and empty it.

    Raises
    ------
    RuntimeError
        If a step had more events than the log had room for.
    """
    log = pool.log
    if log.num_lost:
        raise RuntimeError(f"{log.num_lost} KV cache events of one step found no room")
    count, events = log.num_events, log.events
    if isinstance(events, Views):
        rows = events.array[:count].copy()
    else:
        rows = np.zeros(count, Event.dtype())
        for name in Event.kinds():
            rows[name] = [getattr(events[place], name) for place in range(count)]
    keys, places = (np.array(head(n, log.num_keys), np.int64) for n in (log.keys, log.places))
    log.num_events = log.num_keys = 0
    return EventRows(rows, keys, places)
