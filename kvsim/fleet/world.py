"""The SimPy world: clients, router and replicas on one clock.

A replica runs by itself up to its horizon, the earliest time at which something outside can reach
it. Where nothing outside can, all requests are dealt out beforehand, without an event per request.
Events at one instant happen in a fixed order that does not depend on who scheduled them first:
steps end, then requests are sent, then steps are scheduled.
"""

from __future__ import annotations

import math
from enum import IntEnum
from heapq import heappush
from typing import TYPE_CHECKING

import numpy as np
import simpy

from kvsim.fleet.router import REJECT

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from numpy.typing import NDArray

    from kvsim.engine.backend import Backend
    from kvsim.fleet.gateways import Gateways

    Process = Generator[simpy.Event, None, None]


class Phase(IntEnum):
    """Order of the events of one instant."""

    STEP_ENDS = 10
    REQUEST_IS_SENT = 11
    STEP_IS_SCHEDULED = 12


class World(simpy.Environment):
    """A SimPy environment whose events stand at exact times."""

    def at(self, time: float, phase: Phase) -> simpy.Event:
        """Return an event at an absolute time; ``now + (time - now)`` need not be ``time``."""
        event = simpy.Event(self)  # past SimPy's own scheduling, which takes delays (D16)
        event._ok, event._value = True, None
        heappush(self._queue, (time, phase, next(self._eid), event))  # type: ignore[misc]
        return event


class Serving:
    """Requests on their way from the clients through a router to replicas.

    Parameters
    ----------
    arrival_time : planned arrivals, seconds, ascending, shape (requests,); with limited concurrency
        the time a request was really sent is written into it
    admissible : which requests can be served at all, bool, shape (requests,); the others are
        answered at once and reach no replica
    gateways : who decides which replica serves a request
    max_concurrency : most requests in flight at the clients, None for no limit

    Attributes
    ----------
    turned_away : the requests that a router would not have served, bool, shape (requests,)
    """

    def __init__(
        self,
        arrival_time: NDArray[np.float64],
        admissible: NDArray[np.bool_],
        replicas: Sequence[Backend],
        gateways: Gateways,
        max_concurrency: int | None = None,
    ) -> None:
        self.arrival_time = arrival_time
        self._admissible = admissible
        self._replicas = replicas
        self._gateways = gateways
        self.turned_away = np.zeros(len(arrival_time), dtype=np.bool_)
        self._places = math.inf if max_concurrency is None else max_concurrency
        self._limited = max_concurrency is not None
        self._num_sent = 0
        self._start = float(arrival_time[0])
        self._world = World(initial_time=self._start)
        self._place_freed = self._world.event()
        self._work_arrived = [self._world.event() for _ in replicas]
        self._release_time = [math.inf for _ in replicas]  # of places not given back yet

    @property
    def num_sent(self) -> int:
        """How many requests have left their clients, the first ones of the trace."""
        return self._num_sent

    def run(self) -> None:
        """Serve everything. Mutates the replicas."""
        if self._limited or self._gateways.looks:
            self._world.process(self._send())
            for index in range(len(self._replicas)):
                self._world.process(self._serve(index))
        else:
            self._deal_out()
            for index in range(len(self._replicas)):
                self._world.process(self._serve_alone(index))
        self._world.run()

    # -- nothing outside can reach a replica -----------------------------------------------------

    def _deal_out(self) -> None:
        ids = np.flatnonzero(self._admissible)
        choices = np.zeros(len(ids), dtype=np.int64)
        if len(self._replicas) > 1:
            times = self.arrival_time[ids].tolist()
            choose = self._gateways.choose
            choices[:] = [choose(i, t) for i, t in zip(ids.tolist(), times, strict=True)]
            self.turned_away[ids[choices == REJECT]] = True
        for index, replica in enumerate(self._replicas):
            mine = ids[choices == index]
            replica.submit(mine, self.arrival_time[mine])
        self._num_sent = len(self.arrival_time)

    def _serve_alone(self, index: int) -> Process:
        replica = self._replicas[index]
        replica.advance(math.inf)
        yield self._world.at(replica.clock, Phase.STEP_ENDS)

    # -- clients and replicas watch each other -----------------------------------------------------

    def _send(self) -> Process:
        """Send each request at its planned time, or when a place frees, whichever is later."""
        world = self._world
        while self._num_sent < len(self.arrival_time):
            request_id = self._num_sent
            planned = float(self.arrival_time[request_id])
            if planned > world.now:
                yield world.at(planned, Phase.REQUEST_IS_SENT)
            while not self._places:
                self._place_freed = world.event()
                yield self._place_freed
                # Every step that ends at this very instant has ended before anything is sent.
                yield world.at(world.now, Phase.REQUEST_IS_SENT)
            self.arrival_time[request_id] = world.now
            self._num_sent += 1
            if self._admissible[request_id]:
                self._submit(request_id)

    def _submit(self, request_id: int) -> None:
        index = self._gateways.choose(request_id, self._world.now)
        if index == REJECT:
            self.turned_away[request_id] = True
            return
        self._places -= 1
        now = np.array([self._world.now])
        self._replicas[index].submit(np.array([request_id]), now)
        if not self._work_arrived[index].triggered:
            self._work_arrived[index].succeed()

    def _serve(self, index: int) -> Process:
        """Run a replica from one time it can be reached to the next."""
        world, replica = self._world, self._replicas[index]
        while True:
            if replica.next_event_time() == math.inf:
                self._work_arrived[index] = world.event()
                yield self._work_arrived[index]
                yield world.at(world.now, Phase.STEP_IS_SCHEDULED)
            horizon = self._horizon(index)
            horizon = min(horizon, self._gateways.next_scrape(index, world.now, self._arrival()))
            num_ended = replica.advance(horizon, until_finish=self._limited)
            stopped = bool(num_ended and self._limited)
            self._gateways.reached(index, replica.clock if stopped else horizon)
            if stopped:
                self._release_time[index] = replica.clock
                yield world.at(replica.clock, Phase.STEP_ENDS)
                self._release_time[index] = math.inf
                self._places += num_ended
                if not self._place_freed.triggered:
                    self._place_freed.succeed()
                yield world.at(world.now, Phase.STEP_IS_SCHEDULED)
            elif horizon < math.inf:
                yield world.at(horizon, Phase.STEP_IS_SCHEDULED)

    def _horizon(self, index: int) -> float:
        """Return the earliest time after now at which a request may still be sent to a replica."""
        if self._num_sent == len(self.arrival_time):
            return math.inf
        reached = float(self.arrival_time[self._num_sent])
        if not self._places:
            # A place must free first: by this replica, which then stops, or by another one.
            freed = min(map(self._earliest_release, self._others(index)), default=math.inf)
            reached = max(reached, freed)
        # All that is sent now has been sent: steps are scheduled last in an instant. Replicas that
        # wait for each other to schedule a step now may both do so.
        return max(reached, math.nextafter(self._world.now, math.inf))

    def _arrival(self) -> float | None:
        """Return when the next request is sent, ``inf`` if none is, None if that is not known."""
        if self._num_sent == len(self.arrival_time):
            return math.inf
        return None if self._limited else float(self.arrival_time[self._num_sent])

    def _others(self, index: int) -> list[int]:
        return [i for i in range(len(self._replicas)) if i != index]

    def _earliest_release(self, index: int) -> float:
        """Return a time before which a replica gives no place back."""
        return min(self._release_time[index], self._replicas[index].next_event_time())
