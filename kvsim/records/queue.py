"""Records of queues: linked lists, and a queue in an array."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import NONE, Record, Short


@dataclass(slots=True)
class Queue(Record):
    """A linked list through records with the fields ``next`` and ``previous``."""

    head: int = NONE
    tail: int = NONE
    length: int = 0


@dataclass(slots=True)
class Neighbours(Record):
    """The neighbours of a record in a second linked list."""

    next: Short = NONE
    previous: Short = NONE


@dataclass(slots=True)
class ArrayQueue(Record):
    """Array-backed queue: indices of records, and NONE where one was removed."""

    entries: list[Short] = field(default_factory=list)
    first: int = 0  # no entry before this index is used
    stop: int = 0
    size: int = 0
