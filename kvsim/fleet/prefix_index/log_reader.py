"""Reader of compiled replicas' events, which reads the replicas' logs without copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.prefix_index.event_reader import EventReader
from kvsim.fleet.prefix_index.key_tables import CompiledEventIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.replica import Replica


class LogReader(EventReader):
    """Applies events without copying them, from all replicas in one call.

    If events are kept or passed to listeners, or a log was full, they are read as in
    :class:`EventReader`.
    """

    index: CompiledEventIndex

    def __init__(self, replicas: Sequence[Replica], *args: Any, **options: Any) -> None:
        super().__init__(replicas, *args, **options)
        self._taken = np.zeros(len(replicas), np.int64)  # number of applied events of each log
        self._look_up()

    def _make_index(self, num_replicas: int, group: int) -> CompiledEventIndex:
        return CompiledEventIndex(num_replicas, group)

    def _look_up(self) -> None:
        """Update the addresses of the replicas."""
        self._addresses = np.array([one.address for one in self._replicas], np.int64)
        self._spilled = [one.event_log.spilled for one in self._replicas]

    def replace(self, place: int, replica: Replica) -> None:
        super().replace(place, replica)
        self._taken[place] = 0
        self._look_up()

    def update(self, now: float) -> None:
        if self._keeps or self.listeners:
            super().update(now)
            return
        if any(self._spilled) or any(self._coming):
            for place in range(len(self._replicas)):
                if self._spilled[place] or self._coming[place]:
                    self._read(place, now)
        self.index.apply_logs(self._addresses, self._taken, now - self._delay)

    def _fetch(self, place: int) -> None:
        known, self._taken[place] = int(self._taken[place]), 0
        super()._fetch(place)
        if known:
            self._coming[place][0].taken = known
