"""The replicas of a fleet in an array, with the time of the next event of each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.replica import STEPS_PER_CALL
from kvsim.rules.engine import ADVANCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica


class ReplicaSet:
    """Independent replicas; one call advances all compiled replicas.

    Attributes
    ----------
    times : time of the next event of each replica, seconds
    """

    def __init__(self) -> None:
        self._replicas: list[Replica] = []
        self.times = np.zeros(0)
        self._entries = self._addresses = np.zeros(0, np.int64)
        self._ended = self._told = np.zeros(0, np.int64)
        self._has_entries = self._is_looked_up = False  # entries are compiled at their first use
        self._advance_due: Any = None
        self._horizon = np.zeros(1)

    def add(self, replica: Replica) -> None:
        self._replicas.append(replica)
        self.times = np.append(self.times, replica.next_event_time())
        self._change()

    def remove(self, place: int) -> None:
        """Remove the replica at an index. Mutates."""
        del self._replicas[place]
        self.times = np.delete(self.times, place)
        self._change()

    def touch(self, place: int) -> None:
        """Update a replica's next event time after an outside event. Mutates."""
        self.times[place] = self._replicas[place].next_event_time()

    def bring(self, target: float) -> list[int]:
        """Advance all replicas to a time; return the indices with ended requests. Mutates."""
        self._ended[:] = self._told[:] = 0
        for place in self._left_to_host(target):
            self._told[place] += self.bring_one(place, target)
        found: list[int] = (self._ended + self._told).nonzero()[0].tolist()
        for place in found:
            self._replicas[place].report_ends(int(self._ended[place]))
        return found

    def bring_one(self, place: int, target: float) -> int:
        """Advance a replica, which reports its ended requests, to a time; return their number."""
        before, replica, number = -math.inf, self._replicas[place], 0
        while before < self.times[place] <= target and self.times[place] < math.inf:
            before = self.times[place]
            number += replica.advance(target)
            self.times[place] = replica.state.next_event_time
        return number

    def advance_one_event(
        self, target: float, ahead: float, waits: NDArray[np.bool_]
    ) -> tuple[int, int]:
        """Advance the replica with the next event.

        It runs to ``ahead`` seconds after the next event of another replica, and at most to
        ``target``. Compiled replicas run in turn until requests have ended on one. Mutates.

        Parameters
        ----------
        waits : replicas that can only start a step at the target itself

        Returns
        -------
        place : index of the replica; -1 if all have reached the target
        number : requests that ended on it; the replica has reported them
        """
        columns = self.columns()
        if not self._has_entries:
            place, horizon = self._next_turn(target, ahead, waits)
        else:
            place = self._advance_in_turn(
                *columns, waits, self._horizon, target, ahead, ADVANCE, STEPS_PER_CALL
            )
            horizon = float(self._horizon[0])
        if place < 0:
            return -1, 0
        number = int(self._ended[place])
        if number:
            self._ended[place] = 0
            self._replicas[place].report_ends(number)
            return place, number
        first = self.times[place]
        if self._entries[place]:
            number = self._replicas[place].go_on()
            self.times[place] = self._replicas[place].state.next_event_time
        else:
            number = self.advance_one(place, horizon)
        if self.times[place] == first and first >= horizon:
            waits[place] = True
        return place, number

    def advance_one(self, place: int, horizon: float) -> int:
        """Advance a replica until requests end, which it reports; return their number. Mutates."""
        number = self._replicas[place].advance(horizon, until_finish=True)
        self.times[place] = self._replicas[place].state.next_event_time
        return number

    def _next_turn(
        self, target: float, ahead: float, waits: NDArray[np.bool_]
    ) -> tuple[int, float]:
        """Return the index of the replica with the next event (-1 for none), and its horizon."""
        place, first, second = -1, math.inf, math.inf
        for k, time in enumerate(self.times.tolist()):
            if time < first and not waits[k]:
                place, first, second = k, time, first
            elif time < second:
                second = time
        if first > target or first == math.inf:
            return -1, target
        return place, min(target, max(second + ahead, math.nextafter(first, math.inf)))

    def report_ended(self) -> None:
        """Report the requests that have ended in compiled code. Mutates."""
        for place in self._ended.nonzero()[0].tolist():
            self._replicas[place].report_ends(int(self._ended[place]))
        self._ended[:] = 0

    def columns(self) -> tuple[NDArray[Any], ...]:
        """Return entries (0: run by the host), addresses, times and numbers of ended requests.

        A caller that changes times and numbers must report the ended requests, like :meth:`bring`.
        """
        if not self._is_looked_up:
            self._entries = np.array([one.entry_address for one in self._replicas], np.int64)
            self._addresses = np.array([one.address for one in self._replicas], np.int64)
            self._has_entries = bool(self._entries.any())
            if self._has_entries and self._advance_due is None:
                from kvsim.compiled import loops, replica_set

                self._advance_due = loops.translated(replica_set.advance_due)
                self._advance_in_turn = loops.translated(replica_set.advance_in_turn)
            self._is_looked_up = True
        return self._entries, self._addresses, self.times, self._ended

    def _left_to_host(self, target: float) -> Iterator[int]:
        """Advance the replicas that do not need the host; yield the indices of the others."""
        columns = self.columns()
        if not self._has_entries:
            yield from range(len(self._replicas))
            return
        place = 0
        while place >= 0:
            place = self._advance_due(*columns, place, target, ADVANCE, STEPS_PER_CALL)
            if place >= 0:
                yield place

    def _change(self) -> None:
        count = len(self._replicas)
        self._ended, self._told = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._is_looked_up = False
