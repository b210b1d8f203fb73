"""Records of changes of cached content: vLLM's KV cache events."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import Record, Short, Tiny


class EventKind(IntEnum):
    """The kind of an entry. UPDATE ends the events that one scheduler update publishes.

    CLEARED: no key is left.
    """

    STORED = 0
    REMOVED = 1
    UPDATE = 2
    CLEARED = 3


STORED, REMOVED, UPDATE, CLEARED = (int(kind) for kind in EventKind)


@dataclass(slots=True)
class Event(Record):
    """Blocks that got keys, removed keys, or the end of an update."""

    kind: Short = 0
    group: Short = 0
    row: Short = 0  # of the trace: whose tokens
    block_size: Short = 0
    first: int = 0  # its tokens from here
    stop: int = 0
    has_parent: Tiny = 0
    key: int = 0  # of the block before
    first_key: int = 0  # of the log's keys: those that came, or went
    key_count: int = 0
    time: float = 0.0


@dataclass(slots=True)
class EventLog(Record):
    """Unread events, and the keys that they name."""

    events: list[Event] = field(default_factory=list)
    num_events: int = 0
    is_open: bool = False  # the last one does not end an update
    keys: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # of their blocks in the request, if they came
    num_keys: int = 0
    room: int = 0  # for events, and for keys
    reserve: int = 0  # of that, what a step may need
    num_lost: int = 0  # for which there was no room
