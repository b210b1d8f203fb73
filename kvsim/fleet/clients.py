"""Clients: they send each request as planned, or after the answers for which it waits."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.waits import waits_of
from kvsim.fleet.world import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
        None sends every request at its planned time. A trace may have waits of its own instead

    Attributes
    ----------
    sent_time : send time of each request, seconds, NaN if it was not sent; shape (requests,)
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
        self._waits = waits_of(trace, think_time)
        self._line: deque[int] = deque()  # sent as soon as a slot is free
        self._num_sent = 0
        self._pauses: dict[int, float] = {}  # least seconds after each request in flight
        self._by_pause: list[tuple[float, int]] = []  # a heap; may contain ended requests
        self.sent_time = np.full(len(trace), math.nan)

    @property
    def waits(self) -> bool:
        """Return True if requests may wait for others to end."""
        return self._places < math.inf or self._waits is not None

    @property
    def least_pause(self) -> float:
        """Return the least seconds from a request's end until a waiting one is sent."""
        if self._places < math.inf:
            return 0.0
        order = self._by_pause
        while order and order[0][1] not in self._pauses:
            heappop(order)
        return order[0][0] if order else math.inf

    @property
    def all_sent(self) -> bool:
        return self._num_sent == len(self._planned)

    def send_all(self) -> None:
        """Mark every request as sent at its planned time. Mutates."""
        self.sent_time = self._planned
        self._num_sent = len(self._planned)

    def process(self) -> Process:
        """Send requests as planned."""
        waits = self._waits
        for row, time in enumerate(self._planned.tolist()):
            if waits is not None and not waits.has_plan(row):
                continue
            if time > self._world.now:
                yield self._world.at(time, Phase.REQUEST_IS_SENT)
            ready_time = time if waits is None else waits.come(row)
            if ready_time is not None:
                self._later(row, ready_time)

    def ended(self, rows: Iterable[int], time: float) -> None:
        """Handle requests that end at ``time``, which may be later than the world's time.

        Messages between client and server take some time, so the client's next request misses the
        step that is scheduled at the time of the answer.
        """
        ended, answered = list(rows), math.nextafter(time, math.inf)
        if self._waits is not None:
            for row in ended:
                self._pauses.pop(row, None)
                for later, send_time in self._waits.ended(row, answered):
                    self._later(later, send_time)
        if self._places < math.inf and ended:
            event = self._world.at(answered, Phase.REQUEST_IS_SENT)
            event.callbacks.append(lambda _: self._free(ended))

    def _free(self, rows: list[int]) -> None:
        self._places += len(rows)
        self._serve_line()

    def _later(self, row: int, time: float) -> None:
        """Send a request at a time, or now if the time is past."""
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
            if self._waits is not None:
                self._pauses[row] = self._waits.least_pause(row)
                heappush(self._by_pause, (self._pauses[row], row))
            self._send(row)
            if self._waits is not None:
                for later, time in self._waits.sent(row, self._world.now):
                    self._later(later, time)
