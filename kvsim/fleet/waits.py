"""Conditions for sending a request: the start or end of other requests, and think times."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Waits:
    """Counts the starts and ends that each request still waits for.

    Parameters
    ----------
    offsets, after : the events that each request waits for, as in the columns of a trace
    think_time : seconds from the last event until the request is sent, per request
    has_plan : True if no request is sent before its planned time; else requests that wait for
        others have no planned time
    """

    def __init__(self, offsets: Ints, after: Ints, think_time: Floats, *, has_plan: bool) -> None:
        self._think_time = think_time.tolist()
        self._num_left = np.diff(offsets).tolist()
        self._is_due = [number > 0 and not has_plan for number in self._num_left]
        self._ready_time = [-math.inf] * len(self._num_left)
        self._awaiting: dict[int, list[int]] = defaultdict(list)  # by code in ``after``
        later = np.repeat(np.arange(len(self._num_left)), self._num_left)
        for row, code in zip(later.tolist(), after.tolist(), strict=True):
            self._awaiting[code].append(row)

    def least_pause(self, row: int) -> float:
        """Return the least seconds from a request's end until one that waits for it is sent."""
        return min((self._think_time[k] for k in self._awaiting.get(row, ())), default=math.inf)

    def has_plan(self, row: int) -> bool:
        """Return True if a request has a planned time that has not been reached."""
        return not self._is_due[row]

    def come(self, row: int) -> float | None:
        """Handle the planned time of a request; return its send time, seconds. Mutates.

        None if it still waits for other requests.
        """
        self._is_due[row] = True
        return None if self._num_left[row] else self._ready_time[row] + self._think_time[row]

    def sent(self, row: int, now: float) -> list[tuple[int, float]]:
        """Return the requests that only waited for this one to be sent, with times. Mutates."""
        return self._happened(-row - 1, now)

    def ended(self, row: int, now: float) -> list[tuple[int, float]]:
        """Return the requests that only waited for this one to end, with send times. Mutates.

        Ends may be reported in any order of their times.
        """
        return self._happened(row, now)

    def _happened(self, code: int, now: float) -> list[tuple[int, float]]:
        ready = []
        for row in self._awaiting.pop(code, ()):
            self._num_left[row] -= 1
            self._ready_time[row] = max(self._ready_time[row], now)
            if self._is_due[row] and not self._num_left[row]:
                ready.append((row, self._ready_time[row] + self._think_time[row]))
        return ready


def waits_of(trace: Trace, think_time: float | None) -> Waits | None:
    """Return the waits of a trace's requests, None if each is sent at its planned time."""
    found = waiting_of(trace, think_time)
    return None if found is None else Waits(*found[:3], has_plan=found[3])


def waiting_of(trace: Trace, think_time: float | None) -> tuple[Ints, Ints, Floats, bool] | None:
    """Return what the requests wait for, as arguments of :class:`Waits`; None for nothing.

    If the trace has no waits, a turn of a session waits for the answer of the previous turn and
    then ``think_time`` seconds; if ``think_time`` is None, turns do not wait.
    """
    if trace.has("after"):
        return trace.after_offsets, trace.after, trace.think_time, False
    if think_time is None:
        return None
    before = previous_turns(trace.session_id)
    is_later = before >= 0
    offsets = np.concatenate(([0], np.cumsum(is_later)))
    return offsets, before[is_later], np.full(len(trace), think_time), True


def previous_turns(session_id: Ints) -> Ints:
    """Return the row of the previous turn in each request's session, -1 for none."""
    before = np.full(len(session_id), -1, np.int64)
    order = np.argsort(session_id, kind="stable")
    order = order[session_id[order] >= 0]
    follows = session_id[order][1:] == session_id[order][:-1]
    before[order[1:][follows]] = order[:-1][follows]
    return before
