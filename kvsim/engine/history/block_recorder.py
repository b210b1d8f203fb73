"""The history of every KV block, observed as differences between steps.

All changes of a schedule happen at one time of the replica's clock. A comparison of the
block tables and keys before and after each step misses no lasting change (D92).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engines.registry import engine_by_policy
from kvsim.results.block_events import BLOCK_EVENTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.engine.history.block_watch import Watch
    from kvsim.engine.replica import Replica

#: Most events of a run that are recorded; later events are lost.
MOST_EVENTS = 1_000_000


class BlockRecorder:
    """An observer that records the block events of all replicas of a run.

    Parameters
    ----------
    most : largest number of events to record
    """

    def __init__(self, most: int = MOST_EVENTS) -> None:
        self._most = most
        self._rows: list[tuple[Any, ...]] = []
        self._chunks: list[NDArray[Any]] = []
        self._count = 0
        self._watches: dict[int, tuple[Replica, Watch]] = {}  # by id() of the replica
        self.full_since: float | None = None  #: Time of the first event not recorded, seconds.

    def scheduled(self, replica: Replica) -> None:
        """Record the changes made by a schedule."""
        self._see(replica, scheduled=True)

    def completed(self, replica: Replica) -> None:
        """Record the changes made by the end of a step."""
        self._see(replica, scheduled=False)

    def _see(self, replica: Replica, *, scheduled: bool) -> None:
        if self.full_since is not None:
            replica.leave(self)
            return
        found = self._watches.get(id(replica))
        if found is None:
            watch = engine_by_policy(replica.state.limits.scheduler).watch(replica.state)
            if watch is None:
                replica.leave(self)
                return
            found = self._watches[id(replica)] = replica, watch
        _, watch = found
        rows = watch.changes(scheduled=scheduled)
        if not rows:
            return
        time, number = watch.clock(), replica.state.index
        if self._count + len(rows) > self._most:
            self.full_since = time
            replica.leave(self)
            return
        self._count += len(rows)
        self._rows += [(time, number, *row) for row in rows]
        if len(self._rows) > 1 << 15:
            self._pack()

    def _pack(self) -> None:
        self._chunks.append(np.array(self._rows, dtype=BLOCK_EVENTS))
        self._rows = []

    def table(self) -> NDArray[Any]:
        """Return all events in order of time; events of one replica keep their order."""
        self._pack()
        events = np.concatenate(self._chunks)
        return events[np.argsort(events["time"], kind="stable")]
