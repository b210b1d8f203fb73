"""One timeline for the replicas of a fleet and all events around them.

A replica runs by itself up to the earliest time at which anything can affect it: an event of the
SimPy world, or, if replicas wait for each other's requests or KV, another replica's next event
plus the shortest pause of a client.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsim.engine.replica_set import ReplicaSet
from kvsim.fleet.world import Phase

if TYPE_CHECKING:
    from kvsim.fleet.member import Member
    from kvsim.fleet.world import Process, World


class Watcher(Protocol):
    """Receiver of the replicas' events."""

    def ended(self, member: Member, rows: list[int], time: float) -> None:
        """Handle requests that have ended on a replica, at a time that the world has not reached.

        Any consequence is an event of the world, at that time or later.
        """

    def begun(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Handle a request that needs external KV of ``num_tokens`` tokens."""

    def ahead(self) -> float:
        """Return the least seconds from the end of a request to its effect on another replica."""

    def next_scrape(self, now: float, limit: float) -> float:
        """Return the next time up to ``limit`` at which all replicas must be scraped; else inf."""

    def scrape(self, time: float) -> None:
        """Scrape the replicas, all of which have reached a time."""

    def unblock(self) -> bool:
        """Resolve a state in which no replica can continue; True if an event is scheduled."""


class FleetClock:
    """Advances replicas and the SimPy world in the order of time.

    Parameters
    ----------
    world : the SimPy environment
    watcher : receives the replicas' events
    coupled : an event on one replica may affect another one

    Attributes
    ----------
    replica_set : the set of replicas
    """

    def __init__(self, world: World, watcher: Watcher, *, coupled: bool) -> None:
        self._world = world
        self._watcher = watcher
        self._coupled = coupled
        self._members: list[Member] = []
        self.replica_set = ReplicaSet()

    def add(self, member: Member) -> None:
        self._members.append(member)
        self.replica_set.add(member.replica)

    def remove(self, member: Member) -> None:
        place = self._members.index(member)
        del self._members[place]
        self.replica_set.remove(place)

    def touch(self, member: Member) -> None:
        """Update a replica's next event time after an outside event. Mutates."""
        self.replica_set.touch(self._members.index(member))

    def process(self) -> Process:
        """Run until no event is left."""
        while True:
            time = self._bring()
            if time == math.inf:
                return
            yield self._world.at(time, Phase.STEP_IS_SCHEDULED)

    def _bring(self) -> float:
        """Advance all replicas to the world's next event; return its time."""
        while True:
            limit = self._world.peek()
            if self._is_idle:
                if self._watcher.unblock():
                    continue
                if limit == math.inf:
                    return math.inf
            look = self._watcher.next_scrape(self._world.now, limit)
            target = min(limit, look)
            if not self._reach(target):
                continue
            if look <= limit and look < math.inf:
                self._watcher.scrape(look)
                continue
            if limit < math.inf or not self._is_idle:
                return limit

    @property
    def _is_idle(self) -> bool:
        """Return True if no replica has an event of its own."""
        return bool(self.replica_set.times.min(initial=math.inf) == math.inf)

    def _reach(self, target: float) -> bool:
        """Advance all replicas to ``target``; False if the world gets an event before it."""
        if not self._coupled:
            for place in self.replica_set.bring(target):
                if self._members[place].is_followed:
                    self._notify_ended(self._members[place])
            return self._world.peek() >= target
        ahead = self._watcher.ahead()
        waits = np.zeros(len(self._members), np.bool_)
        while True:
            place, num_ended = self.replica_set.advance_one_event(target, ahead, waits)
            if place < 0:
                return True
            self._notify(place, num_ended)
            if self._world.peek() < target:
                return False

    def _notify(self, place: int, num_ended: int) -> None:
        """Notify the watcher of the requests that ended, or need KV, in a replica's advance."""
        member = self._members[place]
        if num_ended:
            self._notify_ended(member)
        for row, num_tokens, time in member.replica.pop_started_loads():
            self._watcher.begun(member, row, num_tokens, time)

    def _notify_ended(self, member: Member) -> None:
        self._watcher.ended(member, member.pop_ended(), member.replica.clock)
