"""The SimPy world: clients, routers and replicas on one clock.

Events at one instant happen in a fixed order: steps end, then requests are sent, then steps are
scheduled.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import heappush
from typing import TYPE_CHECKING

import simpy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Process = Generator[simpy.Event, None, None]


class Phase(IntEnum):
    """Order of the events of one instant."""

    STEP_ENDS = 10
    REQUEST_IS_SENT = 11
    STEP_IS_SCHEDULED = 12


class World(simpy.Environment):
    """A SimPy environment with events at exact times."""

    def at(self, time: float, phase: Phase) -> simpy.Event:
        """Return an event at exactly ``time``; now plus a delay could round to another time."""
        event = simpy.Event(self)  # not by Environment.schedule, which takes delays (D16)
        event._ok, event._value = True, None
        heappush(self._queue, (time, phase, next(self._eid), event))  # type: ignore[misc]
        return event

    def call_at(self, time: float, action: Callable[[], object]) -> None:
        """Call an action at a time, before the requests of that time are sent."""

        def act(_: simpy.Event) -> None:
            action()

        self.at(time, Phase.STEP_ENDS).callbacks.append(act)
