"""Lanes of clients: each serves one session, with its sub-agents, after the other."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.trace.plays import sessions_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.trace import Trace


class Lanes:
    """The sessions that have not begun, and the requests that each begun one still waits for.

    Parameters
    ----------
    trace : the requests
    number : number of lanes
    is_begun : the first session of each lane is begun: its planned times count from the trace's
    """

    def __init__(self, trace: Trace, number: int, *, is_begun: bool = False) -> None:
        self.number = number
        self._num_begun = number if is_begun else 0
        sessions = sessions_of(trace)
        self._next = iter(sessions)
        self._session_of = {row: k for k, rows in enumerate(sessions) for row in rows}
        self._left = [len(rows) for rows in sessions]
        self._end = [-math.inf] * len(sessions)
        self._planned = trace.arrival_time

    @property
    def takes_begun(self) -> bool:
        """Return True if the next session is one that is begun."""
        return self._num_begun > 0

    def take(self) -> list[tuple[int, float]]:
        """Return the next session's requests, and their planned seconds after its begin. Mutates.

        The list is empty if every session has begun.
        """
        rows: Sequence[int] = next(self._next, ())
        first = 0 if self.takes_begun or not rows else rows[0]
        self._num_begun = max(self._num_begun - 1, 0)
        return [(row, float(self._planned[row] - self._planned[first])) for row in rows]

    def ended(self, row: int, time: float) -> float | None:
        """Handle the end of a request; return that of its session, None if it goes on. Mutates."""
        session = self._session_of[row]
        self._left[session] -= 1
        self._end[session] = max(self._end[session], time)
        return None if self._left[session] else self._end[session]
