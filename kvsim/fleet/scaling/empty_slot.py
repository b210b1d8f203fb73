"""A slot without a replica."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from kvsim.kv.events import EventRows


class NoEvents:
    """An event log without events."""

    has_events = False
    spilled: ClassVar[list[EventRows]] = []


class EmptySlot:
    """The interface of a replica for a slot without one: it has no events and no requests."""

    clock = -math.inf
    compiled = False
    address = 0
    event_log = NoEvents()

    def next_event_time(self) -> float:
        """Return infinity: nothing will happen."""
        return math.inf

    def num_outstanding(self) -> int:
        """Return 0: no request was sent here."""
        return 0

    def metrics(self) -> tuple[int, int, float, int, int]:
        """Return zeros: no requests, no used blocks, no computed tokens."""
        return 0, 0, 0.0, 0, 0
