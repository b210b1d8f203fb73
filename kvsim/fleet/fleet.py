"""A running fleet: clients, pools of replicas, and the features of the run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.admission.admissibility import reset_requests
from kvsim.fleet.clients import Clients
from kvsim.fleet.clock import FleetClock
from kvsim.fleet.lock_step import LockStepClock
from kvsim.fleet.member import Life
from kvsim.fleet.routing.arrival_loop import ArrivalLoop, can_route
from kvsim.fleet.routing.client_loop import ClientLoop
from kvsim.fleet.routing.router import REJECT
from kvsim.fleet.waits import waiting_of
from kvsim.sched.backlog import backlog_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica
    from kvsim.fleet.feature import Feature
    from kvsim.fleet.member import Member
    from kvsim.fleet.plan import Plan
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World
    from kvsim.trace import Trace


class Fleet:
    """Serves a trace on pools of replicas.

    Parameters
    ----------
    world : the SimPy environment
    trace : the requests
    admissible : requests that can be served at all, bool, shape (requests,)
    pools : the pools of replicas, a prefill pool first
    plan : the plan of the run

    Attributes
    ----------
    drive : the clock that advances the replicas
    features : the features of the run, in the order of their hooks
    unplaced : requests that wait until a replica is ready
    turned_away : the requests that a gateway turned away, bool, shape (requests,)
    """

    def __init__(
        self,
        world: World,
        trace: Trace,
        admissible: NDArray[np.bool_],
        pools: Sequence[Pool],
        plan: Plan,
    ) -> None:
        self._world = world
        self._trace = trace
        self._admissible = admissible
        self.pools, self._main = pools, pools[-1]
        self._coupled, self._changes = plan.couples, plan.changes
        self._only_waits = not (plan.meets or plan.changes)
        self._think_time = plan.config.session_think_time
        self.drive: FleetClock
        self.features: list[Feature] = []
        if plan.in_step:
            self.drive = LockStepClock(world, self, coupled=True)
            self.features.append(self.drive.lock_step)
        else:
            self.drive = FleetClock(world, self, coupled=self._coupled)
        self.clients: Clients
        self.unplaced: list[int] = []
        self.turned_away = np.zeros(len(trace), dtype=np.bool_)
        for pool in pools:
            for member in pool.members:
                self.drive.add(member)

    def run(self, clients: Clients) -> None:
        """Serve the whole trace. Mutates."""
        self.clients = clients
        is_fixed = not self._coupled and not self._changes
        if is_fixed and not self._main.gateways.looks and not self._decides_by_rule():
            clients.send_all()
            self._deal_out()
            return
        if self._coupled and self._only_waits and self._serve_together(clients):
            return
        if is_fixed:
            for member in self._main.members:
                member.is_followed = False
            if self._decide_together():
                clients.send_all()
        if not clients.all_sent:
            self._world.process(clients.process())
        for feature in self.features:
            for process in feature.processes():
                self._world.process(process)
        self._world.process(self.drive.process())
        self._world.run()

    def _decides_by_rule(self) -> bool:
        """Return True if one loop can route all requests."""
        return can_route(self._main.gateways, [one.replica for one in self._main.members])

    def _decide_together(self) -> bool:
        """Route all requests in one loop, if their router allows it. Mutates."""
        if not self._decides_by_rule():
            return False
        gateways, replicas = self._main.gateways, [one.replica for one in self._main.members]
        rows = np.flatnonzero(self._admissible)
        outputs = np.ascontiguousarray(self._trace.output_content_id)
        given = rows, self._trace.arrival_time[rows], outputs
        table = self._main.table
        ArrivalLoop(
            gateways, replicas, self.drive.replica_set, table, *given, start_time=self._world.now
        ).run()
        return True

    def _serve_together(self, clients: Clients) -> bool:
        """Serve clients that only wait for answers in one loop, if their router allows it. Mutates.

        Return False if it does not.
        """
        # Subclasses send requests by rules of their own.
        waiting = waiting_of(self._trace, self._think_time) if type(clients) is Clients else None
        if waiting is None or not clients.only_waits or not self._decides_by_rule():
            return False
        gateways, replicas = self._main.gateways, [one.replica for one in self._main.members]
        outputs = np.ascontiguousarray(self._trace.output_content_id)
        sent = clients.sent_time, self._admissible, self._trace.arrival_time
        ClientLoop(
            *(gateways, replicas, self.drive.replica_set, self._main.table, outputs),
            *(self._world.now, sent, waiting),
        ).run()
        return True

    def _deal_out(self) -> None:
        """Serve requests that no outside event can affect, without a SimPy event each. Mutates."""
        ids, gateways = np.flatnonzero(self._admissible), self._main.gateways
        times = self._trace.arrival_time
        if len(self._main.members) == 1:
            serve_alone(self._main.members[0].replica, ids, times[ids])
            return
        planned = times[ids].tolist()
        chosen = [gateways.choose(i, t) for i, t in zip(ids.tolist(), planned, strict=True)]
        choices = np.array(chosen, dtype=np.int64)
        self.turned_away[ids[choices == REJECT]] = True
        for place, member in enumerate(self._main.members):
            mine = ids[choices == place]
            serve_alone(member.replica, mine, times[mine])

    # -- requests arrive -------------------------------------------------------------------------

    def send(self, row: int) -> None:
        """Handle a request that is sent now. Mutates."""
        now = self._world.now
        if not self._admissible[row]:
            self.notify_ended([row], now)
        elif not any(feature.on_send(row) for feature in self.features):
            self.place(row, now)

    def place(self, row: int, now: float) -> None:
        """Assign a request to a replica, now or as soon as one is ready. Mutates."""
        if not all(pool.is_choosable for pool in self.pools):
            self.unplaced.append(row)
            return
        target = self.choose(self._main, row, now)
        is_submitted = any(feature.on_place(row, target, now) for feature in self.features)
        if target is None:
            self.turn_away(row)
        elif not is_submitted:
            self.submit(target, row, now)

    def choose(self, pool: Pool, row: int, now: float) -> Member | None:
        """Return the replica that a pool's gateways choose; None if they reject the request."""
        place = pool.gateways.choose(row, now)
        return None if place == REJECT else pool.places[place]

    def turn_away(self, row: int) -> None:
        """Answer a request without serving it, and reset its earlier attempts. Mutates."""
        self.turned_away[row] = True
        reset_requests(self._main.table, [row])
        self._main.table["num_output_tokens"][row] = 0
        for feature in self.features:
            feature.on_turned_away(row)
        self.notify_ended([row], self._world.now)

    def place_again(self, rows: list[int]) -> None:
        """Place the requests of a lost replica, and all requests without a replica. Mutates."""
        rows, self.unplaced = [*rows, *self.unplaced], []
        for row in rows:
            self.send(row)

    def notify_ended(self, rows: list[int], time: float) -> None:
        """Notify the clients that requests end at a time. Mutates."""
        self.clients.ended(rows, time)
        for feature in self.features:
            feature.on_answered(time)

    @property
    def is_done(self) -> bool:
        """Return True if all requests have been sent and have ended."""
        if not self.clients.all_sent or self.unplaced:
            return False
        if any(feature.num_held_back or feature.num_open for feature in self.features):
            return False
        return not any(m is not None and m.rows for pool in self.pools for m in pool.places)

    def submit(self, member: Member, row: int, now: float) -> None:
        """Submit a request to a replica. Mutates."""
        for feature in self.features:
            feature.on_submit(member, row, now)
        member.submit(row, now)
        if member.life is not Life.FAILED:
            self.drive.touch(member)

    # -- events of replicas ----------------------------------------------------------------------

    def ended(self, member: Member, rows: list[int], time: float) -> None:
        """Handle requests that have ended on a replica; see :class:`kvsim.fleet.clock.Watcher`."""
        if not any(feature.on_ended(member, rows, time) for feature in self.features):
            self.notify_ended(rows, time)

    def begun(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Handle a request that has blocks for external KV, or needs none."""
        for feature in self.features:
            feature.on_started(member, row, num_tokens, time)

    # -- scrapes ---------------------------------------------------------------------------------

    def ahead(self) -> float:
        """Return the least delay of an effect, seconds; see :class:`kvsim.fleet.clock.Watcher`.

        A request that is sent after a pause is routed by metrics from an earlier scrape, so the
        replicas must stop at that scrape.
        """
        if not self._only_waits:
            return 0.0
        longest = max(pool.gateways.scrape_interval for pool in self.pools)
        return max(self.clients.least_pause - longest, 0.0)

    def next_scrape(self, now: float, limit: float) -> float:
        """Return the time of the routers' next scrape; see :class:`kvsim.fleet.clock.Watcher`."""
        if self.clients.all_sent and not any(one.num_held_back for one in self.features):
            return math.inf
        every = self._coupled and self.ahead() <= 0.0
        return min(pool.gateways.next_scrape(now, limit, every=every) for pool in self.pools)

    def scrape(self, time: float) -> None:
        """Scrape the replicas, all of which have reached a time. Mutates."""
        for pool in self.pools:
            pool.gateways.scrape(time)

    def unblock(self) -> bool:
        """Release requests that wait for each other; see :class:`kvsim.fleet.clock.Watcher`."""
        return any(feature.unblock() for feature in self.features)


def serve_alone(
    replica: Replica, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]
) -> None:
    """Serve requests to their end on a replica that no outside event affects. Mutates."""
    replica.state.limits.backlog = backlog_of(replica.state)
    replica.submit(request_ids, arrival_times)
    replica.advance(math.inf)
