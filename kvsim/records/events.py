"""Records of changes of cached content: vLLM's KV cache events."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import Record, Short, Tiny


class EventKind(IntEnum):
    """The kind of an event. UPDATE follows the events that one update of the scheduler publishes.

    CLEARED means that all keys are removed.
    """

    STORED = 0
    REMOVED = 1
    UPDATE = 2
    CLEARED = 3


STORED, REMOVED, UPDATE, CLEARED = (int(kind) for kind in EventKind)


@dataclass(slots=True)
class Event(Record):
    """An event: blocks that got keys, keys that were removed, or the end of an update."""

    kind: Short = 0
    group: Short = 0
    row: Short = 0  # the request of the stored tokens, as a row of the trace
    block_size: Short = 0
    first: int = 0  # its first stored token, and the end of the stored ones
    stop: int = 0
    has_parent: Tiny = 0
    key: int = 0  # key of the block before, if there is one
    first_key: int = 0  # index in `EventLog.keys` of the first key stored or removed
    key_count: int = 0
    time: float = 0.0


@dataclass(slots=True)
class EventLog(Record):
    """Unread events, and the keys that they name."""

    events: list[Event] = field(default_factory=list)
    num_events: int = 0
    is_open: bool = False  # the last event does not end an update
    keys: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # by key: its block in the request, if stored
    num_keys: int = 0
    room: int = 0  # capacity of each list
    reserve: int = 0  # entries of each list that one step may need
    num_lost: int = 0  # events and keys that found no room
