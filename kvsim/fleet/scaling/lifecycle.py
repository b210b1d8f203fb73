"""Replicas that start, drain, fail and end."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.fleet.member import Life
from kvsim.fleet.scaling.failures import Failures
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.fleet.feature import Host
    from kvsim.fleet.member import Member
    from kvsim.fleet.migration.resumption import ResumedRequests
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World


#: Largest number of restarts of a request, so that a run ends even if every replica fails early.
MOST_RETRIES = 100


class Change(NamedTuple):
    """The number of replicas in each state from a time (seconds) on."""

    time: float
    ready: int
    starting: int
    draining: int


class Lifecycle:
    """The replicas of one pool over time.

    Parameters
    ----------
    world : the SimPy environment
    host : the fleet
    pool : the pool; its replicas are put into its slots and removed from them
    make : function of slot and time (seconds) that makes a replica
    cold_start : seconds from the decision until a replica accepts requests
    failures : the failures of replicas, and the policy for their requests; None for no failures
    grace : seconds after which a draining replica is killed, like a failed one
    table : requests table of the pool that produces the outputs
    migrations : keeps the progress of requests that move
    end_time : time at which replicas stop, even with unfinished requests, seconds; no replica fails
        later
    """

    def __init__(
        self,
        world: World,
        host: Host,
        pool: Pool,
        make: Callable[[int, float], Member],
        *,
        cold_start: float,
        failures: Failures | None,
        grace: float,
        table: NDArray[Any],
        migrations: ResumedRequests,
        end_time: float,
    ) -> None:
        self._world, self._host, self._drive, self._pool = world, host, host.drive, pool
        self._make = make
        self._cold_start = cold_start
        self._failures = failures
        self._policy = Failures() if failures is None else failures
        self._grace = grace
        self.changes: list[Change] = []
        self.num_failures = 0
        self.failed: list[tuple[float, int]] = []  # time, and number of the replica
        self.num_lost = 0  # unfinished requests of replicas that failed
        self._times_lost: Counter[int] = Counter()
        self.waited_until = -math.inf
        self._table, self._migrations = table, migrations
        self._end_time = end_time
        self._show()
        self._note()

    def members(self, *lives: Life) -> list[Member]:
        """Return the replicas in some states, by slot."""
        return [m for m in self._pool.places if m is not None and m.life in lives]

    def resize(self, desired: int) -> bool:
        """Start or drain replicas until ``desired`` are ready or starting. Mutates.

        A failed replica counts until its gateway detects the failure. Returns True if any replica
        was started or drained. A replica can start only in a slot that no draining replica uses.
        """
        now, alive = self._world.now, self.members(Life.READY, Life.STARTING)
        desired -= len([one for one in self._pool.choosable() if one.life is Life.FAILED])
        free = [place for place, member in enumerate(self._pool.places) if member is None]
        started = free[: max(desired - len(alive), 0)]
        for place in started:
            self._start_at(place, now)
        # Starting replicas drain first, then the newest.
        alive.sort(key=lambda m: (m.life is Life.STARTING, m.number))
        leaving = alive[max(desired, 0) :][::-1]
        for member in leaving:
            self._drain(member, now)
        self._note()
        return bool(started or leaving)

    def sweep(self) -> None:
        """Remove the replicas that have drained. Mutates."""
        for member in self.members(Life.DRAINING):
            if self._is_idle(member):
                self._leave(member, max(member.drain_time, member.last_end_time))
        self._note()

    def _is_idle(self, member: Member) -> bool:
        if member.rows or member.replica.holds_for_others:
            return False
        return not any(one.waits_for(member) for one in self._host.features)

    def fail_at(self, place: int) -> None:
        """Fail the replica in a slot now, if there is one. Mutates."""
        member = self._pool.places[place]
        if member is not None:
            self.fail(member)

    def fail(self, member: Member) -> None:
        """Fail a replica now; its gateway detects it after the ``detection`` time. Mutates."""
        if member.is_alive and self._goes_on():
            self.num_failures += 1
            self.failed.append((self._world.now, member.number))
            self._lose(member, self._policy.detection)

    def _kill(self, member: Member) -> None:
        """Kill a replica that has not drained in time; its requests are lost. Mutates."""
        if member.life is Life.DRAINING and self._goes_on():
            self._lose(member, 0.0)

    def _goes_on(self) -> bool:
        return not self._host.is_done and self._world.now < self._end_time

    def _lose(self, member: Member, detection: float) -> None:
        """End a replica and its requests; its gateway detects it ``detection`` s later. Mutates."""
        now, replica = self._world.now, member.replica
        self._migrations.see(list(member.rows), replica.last_tokens())
        for row in list(member.rows):
            replica.withdraw(row, now)
        was_ready, member.life = member.life is Life.READY, Life.FAILED
        self._pool.gateways.lose(member.place)
        member.end_time = now
        self._drive.remove(member)
        for feature in self._host.features:
            feature.on_lost(member)
        self._note()
        time = now + detection
        if time < self._end_time:
            self._world.call_at(time, lambda: self._detect(member, replaced=was_ready))
        else:
            self._world.call_at(self._end_time, lambda: self._outlast(member))

    def _outlast(self, member: Member) -> None:
        """Handle a failure that is not detected by the end of the run. Mutates.

        The replica's requests count as in flight.
        """
        if not member.rows:
            return
        self.waited_until = self._end_time
        self.num_lost += len(member.rows)
        rows = list(member.rows)
        self._table["finish_reason"][rows] = FinishReason.IN_FLIGHT
        self._table["finish_time"][rows] = math.nan

    def _detect(self, member: Member, *, replaced: bool) -> None:
        """Remove a failed replica, handle its requests by the policy, and start another replica."""
        failures, features = self._policy, self._host.features
        apart = [row for feature in features for row in feature.on_detected(member)]
        rows = list(dict.fromkeys([*member.rows, *apart]))
        member.rows.clear()
        self.num_lost += len(rows)
        self._pool.places[member.place] = None
        member.life = Life.GONE
        self._pool.gateways.forget(member.place, self._world.now)
        self._show()
        if replaced:
            self._start_at(member.place, self._world.now)
        table = self._table
        self._times_lost.update(rows)
        tries = MOST_RETRIES if failures.retries else 0
        again = [row for row in rows if self._times_lost[row] <= tries]
        lost = [row for row in rows if self._times_lost[row] > tries]
        if failures.migrates:
            again, lost = self._migrations.split(rows, failures.limit, failures.max_seq_len)
            for feature in features:
                feature.on_resumed(again)
            self._migrations.leave(again)
        table["finish_reason"][lost] = FinishReason.FAILED
        table["finish_time"][lost] = self._world.now
        self._host.notify_ended(lost, self._world.now)
        table["finish_reason"][again] = FinishReason.IN_FLIGHT
        self._host.place_again(again)
        self._note()

    def _start_at(self, place: int, now: float) -> None:
        member = self._make(place, now)
        member.life, member.ready_time = Life.STARTING, now + self._cold_start
        self._pool.places[place] = member
        self._world.call_at(member.ready_time, lambda: self._become_ready(member))
        self._note()

    def _become_ready(self, member: Member) -> None:
        if member.life is not Life.STARTING:
            return
        member.life = Life.READY
        self._pool.gateways.replace(member.place, member.replica, self._world.now)
        self._drive.add(member)
        self._show()
        self._note()
        self.plan_failure(member)
        self._host.place_again([])

    def plan_failure(self, member: Member) -> None:
        """Schedule the failure of a ready replica at a random time, if failures occur. Mutates."""
        if self._failures is None:
            return
        time = self._world.now + self._failures.draw(self._pool.gpus_per_replica)
        if time < math.inf:
            self._world.call_at(time, lambda: self.fail(member))

    def _drain(self, member: Member, now: float) -> None:
        member.drain_time = now
        if member.life is Life.STARTING:
            member.life, member.end_time = Life.GONE, now
            self._pool.places[member.place] = None
            return
        member.life = Life.DRAINING
        self._show()
        if self._is_idle(member):
            self._leave(member, now)
        elif self._grace < math.inf:
            self._world.call_at(now + self._grace, lambda: self._kill(member))

    def _leave(self, member: Member, time: float) -> None:
        member.life, member.end_time = Life.GONE, time
        self._pool.places[member.place] = None
        self._pool.gateways.forget(member.place, time)
        self._drive.remove(member)

    def _show(self) -> None:
        """Restrict the router to the replicas that it may choose."""
        self._pool.gateways.show([member.place for member in self._pool.choosable()])

    def _note(self) -> None:
        counts = [len(self.members(one)) for one in (Life.READY, Life.STARTING, Life.DRAINING)]
        if not self.changes or counts != list(self.changes[-1][1:]):
            self.changes.append(Change(self._world.now, *counts))
