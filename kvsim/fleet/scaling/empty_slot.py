"""A place for a replica at which there is none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from kvsim.kv.events import EventRows


class NoEvents:
    """An outlet out of which nothing comes."""

    has_events = False
    spilled: ClassVar[list[EventRows]] = []


class EmptySlot:
    """What a gateway reads where no replica has been started yet: nothing happens there."""

    clock = -math.inf
    compiled = False
    address = 0
    event_log = NoEvents()

    def next_event_time(self) -> float:
        """Never."""
        return math.inf

    def num_outstanding(self) -> int:
        """Nothing was sent here."""
        return 0

    def metrics(self) -> tuple[int, int, float, int, int]:
        """Nobody waits, nobody runs, no block is used, no token was computed."""
        return 0, 0, 0.0, 0, 0
