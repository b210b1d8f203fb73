"""Clients: they send each request as planned, or after the answers for which it waits."""

from __future__ import annotations

import math
from collections import deque
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.admission.idle import pauses_of
from kvsim.fleet.admission.lanes import Lanes
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
    lanes : number of sessions at a time, None for no limit. A session's planned times then count
        from the time at which a lane begins it
    is_begun : the first session of each lane is begun: the rest of its pause is planned
    tree_idle_cap : longest time without a request of a session, sub-agents included, in flight
        while requests of it pause; all its pauses then shrink. None for no limit
    idle_cap : the same for the requests of all sessions together

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
        lanes: int | None = None,
        is_begun: bool = False,
        tree_idle_cap: float | None = None,
        idle_cap: float | None = None,
    ) -> None:
        self._world = world
        self._planned = trace.arrival_time
        self._send = send
        self._places = math.inf if max_concurrency is None else max_concurrency
        self._waits = waits_of(trace, think_time)
        self._lanes = None if lanes is None else Lanes(trace, lanes, is_begun=is_begun)
        self._idle = pauses_of(trace, tree_idle_cap, idle_cap)
        self._line: deque[int] = deque()  # sent as soon as a slot is free
        self._num_sent = 0
        self._pauses: dict[int, float] = {}  # least seconds after each request in flight
        self._by_pause: list[tuple[float, int]] = []  # a heap; may contain ended requests
        self.sent_time = np.full(len(trace), math.nan)

    @property
    def waits(self) -> bool:
        """Return True if requests may wait for others to end."""
        return self._places < math.inf or self._waits is not None or self._lanes is not None

    @property
    def only_waits(self) -> bool:
        """Return True if requests wait for others to be sent or to end, and for nothing else."""
        others = self._lanes is not None or self._idle is not None
        return self._waits is not None and self._places == math.inf and not others

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
        if self._lanes is not None:
            for _ in range(self._lanes.number):
                self._begin_session()
            return
        for row, time in enumerate(self._planned.tolist()):
            if not self._has_plan(row):
                continue
            if time > self._world.now:
                yield self._world.at(time, Phase.REQUEST_IS_SENT)
            self._come(row)

    def ended(self, rows: Iterable[int], time: float) -> None:
        """Handle requests that end at ``time``, which may be later than the world's time.

        Messages between client and server take some time, so the client's next request misses the
        step that is scheduled at the time of the answer.
        """
        ended, answered = list(rows), math.nextafter(time, math.inf)
        for row in ended:
            self._pauses.pop(row, None)
            if self._waits is not None:
                for later, send_time in self._waits.ended(row, answered):
                    self._later(later, send_time)
            if self._lanes is not None:
                session_end = self._lanes.ended(row, answered)
                if session_end is not None:
                    self._call_at(session_end, self._begin_session)
            if self._idle is not None:
                self._call_at(answered, partial(self._rest, row))
        if self._places < math.inf and ended:
            self._call_at(answered, lambda: self._free(ended))

    def _begin_session(self) -> None:
        assert self._lanes is not None
        begin, is_begun = self._world.now, self._lanes.takes_begun
        rows = self._lanes.take()
        for row, offset in rows:
            if is_begun and row == rows[0][0]:
                self._later(row, begin + offset)
            elif self._has_plan(row):
                self._call_at(begin + offset, partial(self._come, row))

    def _has_plan(self, row: int) -> bool:
        return self._waits is None or self._waits.has_plan(row)

    def _come(self, row: int) -> None:
        """Handle the planned time of a request."""
        ready_time = self._world.now if self._waits is None else self._waits.come(row)
        if ready_time is not None:
            self._later(row, ready_time)

    def _free(self, rows: list[int]) -> None:
        self._places += len(rows)
        self._serve_line()

    def _later(self, row: int, time: float) -> None:
        """Send a request at a time, or now if the time is past."""
        if self._idle is None or time <= self._world.now:
            self._call_at(time, partial(self._queue, row))
        else:
            self._idle.begin(row, time)
            self._call_at(time, partial(self._wake, row))

    def _wake(self, row: int) -> None:
        assert self._idle is not None
        if self._idle.is_due(row, self._world.now):
            self._queue(row)

    def _rest(self, row: int) -> None:
        """Shrink pauses if nothing is in flight after a request's end."""
        assert self._idle is not None
        for other, time in self._idle.ended(row, self._world.now):
            self._call_at(time, partial(self._wake, other))

    def _call_at(self, time: float, action: Callable[[], None]) -> None:
        """Call an action at a time, or now if the time is past."""
        if time <= self._world.now:
            action()
            return
        event = self._world.at(time, Phase.REQUEST_IS_SENT)
        event.callbacks.append(lambda _: action())

    def _queue(self, row: int) -> None:
        self._line.append(row)
        self._serve_line()

    def _serve_line(self) -> None:
        while self._line and self._places > 0:
            row = self._line.popleft()
            self._places -= 1
            self._num_sent += 1
            self.sent_time[row] = self._world.now
            if self._idle is not None:
                self._idle.sent(row)
            if self._waits is not None or self._lanes is not None:
                self._pauses[row] = self._least_pause(row)
                heappush(self._by_pause, (self._pauses[row], row))
            self._send(row)
            if self._waits is not None:
                for later, time in self._waits.sent(row, self._world.now):
                    self._later(later, time)

    def _least_pause(self, row: int) -> float:
        """Return the least seconds from a request's end until another one is sent."""
        pause = math.inf if self._waits is None else self._waits.least_pause(row)
        pause = pause if self._idle is None else min(pause, self._idle.shortest)
        # A request that no other waits for may be the last of its session.
        return 0.0 if self._lanes is not None and math.isinf(pause) else pause
