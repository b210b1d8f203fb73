"""Clients: when each request is sent, and which answers it waits for."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.world import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from kvsim.fleet.world import Process, World
    from kvsim.trace import Trace


class Clients:
    """Sends each request at its planned time, or later if it waits for other requests to end.

    Parameters
    ----------
    world : the SimPy environment
    trace : the requests, in order of their planned times
    send : called with a row of the trace when it is sent
    max_concurrency : largest number of requests in flight, None for no limit
    think_time : least seconds from the answer of one turn of a session until the next turn is sent;
        None sends every request at its planned time

    Attributes
    ----------
    sent_time : when each request was sent, seconds, NaN if it was not; shape (requests,)
    """

    def __init__(
        self,
        world: World,
        trace: Trace,
        send: Callable[[int], object],
        *,
        max_concurrency: int | None = None,
        think_time: float | None = None,
    ) -> None:
        self._world = world
        self._planned = trace.arrival_time
        self._send = send
        self._places = math.inf if max_concurrency is None else max_concurrency
        self._think_time = think_time
        if self.waits:
            self._before, self._after = turns(trace.session_id)
            self._answered = np.full(len(trace), math.nan)
        self._line: deque[int] = deque()  # sent as soon as a slot is free
        self._parked: set[int] = set()  # planned before the previous turn was answered
        self._num_sent = 0
        self.sent_time = np.full(len(trace), math.nan)

    @property
    def waits(self) -> bool:
        """Return whether requests may wait for others to end."""
        return self._places < math.inf or self._think_time is not None

    @property
    def all_sent(self) -> bool:
        return self._num_sent == len(self._planned)

    def send_all(self) -> None:
        """Mark every request as sent at its planned time. Mutates."""
        self.sent_time = self._planned
        self._num_sent = len(self._planned)

    def process(self) -> Process:
        """Send requests as planned."""
        for row, time in enumerate(self._planned.tolist()):
            if time > self._world.now:
                yield self._world.at(time, Phase.REQUEST_IS_SENT)
            if self._think_time is None or self._before[row] < 0:
                self._queue(row)
                continue
            answered = float(self._answered[self._before[row]])
            if math.isnan(answered):
                self._parked.add(row)
            else:
                self._later(row, answered + self._think_time)

    def ended(self, rows: Iterable[int], time: float) -> None:
        """Handle requests that have ended at a time, which the world may not have reached.

        An answer takes some time to reach its client, and so does the client's next request to the
        server: it misses the step that is scheduled at the very time of the answer.
        """
        ended = list(rows)
        if self.waits and ended:
            event = self._world.at(math.nextafter(time, math.inf), Phase.REQUEST_IS_SENT)
            event.callbacks.append(lambda _: self._free(ended))

    def _free(self, rows: list[int]) -> None:
        self._places += len(rows)
        for row in rows:
            self._answered[row] = self._world.now
            later = int(self._after[row])
            if later in self._parked:
                self._parked.remove(later)
                assert self._think_time is not None
                self._later(later, self._world.now + self._think_time)
        self._serve_line()

    def _later(self, row: int, time: float) -> None:
        """Send a request at a time, or now if that is past."""
        if time <= self._world.now:
            self._queue(row)
            return
        event = self._world.at(time, Phase.REQUEST_IS_SENT)
        event.callbacks.append(lambda _: self._queue(row))

    def _queue(self, row: int) -> None:
        self._line.append(row)
        self._serve_line()

    def _serve_line(self) -> None:
        while self._line and self._places > 0:
            row = self._line.popleft()
            self._places -= 1
            self._num_sent += 1
            self.sent_time[row] = self._world.now
            self._send(row)


def turns(session_id: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the previous and the next turn of each request in its session, -1 for none."""
    before = np.full(len(session_id), -1, np.int64)
    after = np.full(len(session_id), -1, np.int64)
    order = np.argsort(session_id, kind="stable")
    order = order[session_id[order] >= 0]
    follows = session_id[order][1:] == session_id[order][:-1]
    before[order[1:][follows]] = order[:-1][follows]
    after[order[:-1][follows]] = order[1:][follows]
    return before, after
