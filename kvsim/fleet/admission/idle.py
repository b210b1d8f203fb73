"""Pauses of sessions that shrink while nothing is in flight, as clients of benchmarks do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.trace.plays import sessions_of

if TYPE_CHECKING:
    from kvsim.trace import Trace


class IdleCap:
    """Requests in flight and pauses of groups, each of which is idle for a limited time.

    Parameters
    ----------
    group_of : the group of each request
    longest : longest time without a request of a group in flight, seconds
    """

    def __init__(self, group_of: list[int], longest: float) -> None:
        self._group_of, self._longest = group_of, longest
        number = max(group_of) + 1
        self._in_flight = [0] * number
        self._pausing: list[dict[int, None]] = [{} for _ in range(number)]

    def pauses(self, row: int) -> None:
        self._pausing[self._group_of[row]][row] = None

    def sent(self, row: int) -> None:
        group = self._group_of[row]
        self._pausing[group].pop(row, None)
        self._in_flight[group] += 1

    def ended(self, row: int, now: float, due: dict[int, float]) -> list[int]:
        """Handle the end of a request; return those that are sent earlier now. Mutates ``due``.

        All pauses of an idle group shrink equally, so that the first ends with the longest time.
        """
        group = self._group_of[row]
        self._in_flight[group] -= 1
        pausing = self._pausing[group]
        if self._in_flight[group] or not pausing:
            return []
        first, latest = min(due[one] for one in pausing), now + self._longest
        if first <= latest:
            return []
        for one in pausing:
            due[one] = latest + (due[one] - first)
        return list(pausing)


class Pauses:
    """The requests that pause, with their send times, under limits of idle time.

    Parameters
    ----------
    trace : the requests
    session : longest idle time of a session with its sub-agents, seconds; None for no limit
    everything : longest time without any request in flight
    """

    def __init__(self, trace: Trace, session: float | None, everything: float | None) -> None:
        self._due: dict[int, float] = {}
        self._caps: list[IdleCap] = []
        self.shortest = min(one for one in (session, everything) if one is not None)
        if session is not None:
            group_of = [0] * len(trace)
            for group, rows in enumerate(sessions_of(trace)):
                for row in rows:
                    group_of[row] = group
            self._caps.append(IdleCap(group_of, session))
        if everything is not None:
            self._caps.append(IdleCap([0] * len(trace), everything))

    def begin(self, row: int, time: float) -> None:
        """Let a request pause until a time. Mutates."""
        self._due[row] = time
        for cap in self._caps:
            cap.pauses(row)

    def is_due(self, row: int, now: float) -> bool:
        """Return True if a request pauses, and its pause is over."""
        return row in self._due and self._due[row] <= now

    def sent(self, row: int) -> None:
        self._due.pop(row, None)
        for cap in self._caps:
            cap.sent(row)

    def ended(self, row: int, now: float) -> list[tuple[int, float]]:
        """Handle the end of a request; return those that are sent earlier, with times. Mutates."""
        moved = [one for cap in self._caps for one in cap.ended(row, now, self._due)]
        return [(one, self._due[one]) for one in dict.fromkeys(moved)]


def pauses_of(trace: Trace, session: float | None, everything: float | None) -> Pauses | None:
    """Return the pauses of a trace's requests; None if no idle time is limited."""
    return None if session is None and everything is None else Pauses(trace, session, everything)
