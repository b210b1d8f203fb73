"""A fleet at work: clients, pools of replicas, and the KV that goes from one to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.desk import can_decide, decide
from kvsim.fleet.disaggregation import placed
from kvsim.fleet.drive import Drive
from kvsim.fleet.handoffs import Handoffs
from kvsim.fleet.intake import begin_anew
from kvsim.fleet.lock_step import LockStepDrive
from kvsim.fleet.member import Life
from kvsim.fleet.prospect import Prospect
from kvsim.fleet.router import REJECT
from kvsim.fleet.standstill import Standstill
from kvsim.sched.backlog import backlog_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica
    from kvsim.fleet.admission import Admission
    from kvsim.fleet.clients import Clients
    from kvsim.fleet.disaggregation import Disaggregation
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.fetches import Fetches
    from kvsim.fleet.gateways import Gateways
    from kvsim.fleet.handoff import FirstTokenFrom, Protocol
    from kvsim.fleet.member import Member
    from kvsim.fleet.migrations import Migrations
    from kvsim.fleet.moves import Moves
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.storage_reads import StorageReads
    from kvsim.fleet.world import World
    from kvsim.trace import Trace


class Fleet:
    """Serves a trace on pools of replicas.

    Parameters
    ----------
    world : SimPy's
    trace : the requests
    admissible : which of them can be served at all, bool, shape (requests,)
    main : replicas that do whole requests, or what comes after prompts
    prefill : replicas that compute prompts, if they are apart
    disaggregation : which prompts are computed there
    fabric : what KV is moved over
    protocol : who moves it, and when
    proxy_latency : of the proxy, from a prompt's end to its request at the decode replica, seconds
    first_token_from : whose first token clients get of a prompt computed apart
    coupled : what a replica does may reach others, beyond handing KV over
    in_step : the replicas are ranks whose passes begin and end together

    Attributes
    ----------
    admission : the gate that requests pass before, if there is one
    fetches : of prefixes from a store, if there is one
    handoffs : of requests between two replicas, if prompts are computed apart
    migrations : what requests take along that go on elsewhere
    moves : of requests that run, if they move
    may_stay : the requests that a prefill replica could serve whole, bool, shape (requests,)
    unplaced : requests that wait until a replica is ready
    standstill : lets requests go on that wait for each other
    turned_away : the requests that a gateway would not have served, bool, shape (requests,)
    transfer_time : seconds from the start of each transfer to its end, 0 without one
    """

    def __init__(
        self,
        world: World,
        trace: Trace,
        admissible: NDArray[np.bool_],
        main: Pool,
        prefill: Pool | None,
        *,
        disaggregation: Disaggregation,
        fabric: Fabric,
        protocol: Protocol,
        proxy_latency: float,
        first_token_from: FirstTokenFrom,
        coupled: bool,
        in_step: bool = False,
    ) -> None:
        self._world = world
        self._trace = trace
        self._admissible = admissible
        self._main = main
        self._prefill = prefill
        self._disaggregation = disaggregation
        self._coupled = coupled or in_step or prefill is not None
        make_drive = LockStepDrive if in_step else Drive
        self.drive: Drive = make_drive(world, self, coupled=self._coupled)
        self.clients: Clients
        self.admission: Admission | None = None
        self.fetches: Fetches | StorageReads | None = None
        self.migrations: Migrations | None = None
        self.moves: Moves | None = None
        self.unplaced: list[int] = []
        self.may_stay = np.zeros(len(trace), dtype=np.bool_)
        self.turned_away = np.zeros(len(trace), dtype=np.bool_)
        self.transfer_time = np.zeros(len(trace))
        self.standstill = Standstill(world, self)
        self.handoffs: Handoffs | None = None
        if prefill is not None:
            self.handoffs = Handoffs(
                world,
                self.drive,
                main,
                prefill,
                fabric=fabric,
                protocol=protocol,
                proxy_latency=proxy_latency,
                first_token_from=first_token_from,
                submit=self.submit,
                transfer_time=self.transfer_time,
            )
        for pool in self.pools:
            for member in pool.members:
                self.drive.add(member)

    @property
    def pools(self) -> Sequence[Pool]:
        """The pools, that of prompts first."""
        return [self._main] if self._prefill is None else [self._prefill, self._main]

    def run(self, clients: Clients) -> None:
        """Serve everything. Mutates."""
        self.clients = clients
        if self._main.lifecycle is None and not self._coupled and not self._main_gateways.looks:
            clients.send_all()
            self._deal_out()
            return
        if not self._coupled and self._main.lifecycle is None:
            for member in self._main.members:
                member.is_followed = False
            if self._decide_together():
                clients.send_all()
        if not clients.all_sent:
            self._world.process(clients.process())
        for pool in self.pools:
            if pool.scaling is not None:
                self._world.process(pool.scaling.process())
        if self.moves is not None:
            self._world.process(self.moves.process())
        self._world.process(self.drive.process())
        self._world.run()

    def _decide_together(self) -> bool:
        """Let the requests be decided on in one loop, if there is one for their router. Mutates."""
        gateways, replicas = self._main_gateways, [one.replica for one in self._main.members]
        if not can_decide(gateways, replicas, self._trace):
            return False
        rows = np.flatnonzero(self._admissible)
        outputs = np.ascontiguousarray(self._trace.output_content_id)
        decide(gateways, replicas, self.drive.rack, rows, self._planned[rows], outputs)
        return True

    def _deal_out(self) -> None:
        """Serve requests that nothing outside a replica can reach, without an event per request."""
        ids, gateways, times = np.flatnonzero(self._admissible), self._main_gateways, self._planned
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

    # -- requests come ---------------------------------------------------------------------------

    def send(self, row: int) -> None:
        """Take a request that is sent now. Mutates."""
        now = self._world.now
        if not self._admissible[row]:
            self._tell_ended([row], now)
        elif self.admission is not None:
            self.admission.offer(row)
        else:
            self.place(row, now)

    def place(self, row: int, now: float) -> None:
        """Give a request to a replica, when there is one. Mutates."""
        if all(is_there(pool) for pool in self.pools):
            self._place(row, now)
        else:
            self.unplaced.append(row)

    def _place(self, row: int, now: float) -> None:
        target = self._choose(self._main, row, now)
        if self.handoffs is not None:
            self.handoffs.forget(row)
        if target is None:
            self.turn_away(row)
        elif self._prefill is None:
            self.submit(target, row, now)
        else:
            self._place_apart(row, target, now)

    def _place_apart(self, row: int, target: Member, now: float) -> None:
        """Give a request to its decode replica, to a prefill replica, or to both."""
        assert self._prefill is not None
        assert self.handoffs is not None
        prefill, handoffs = self._prefill, self.handoffs
        stays = bool(self.may_stay[row])
        request = Prospect(
            *(self._trace, row, now, target, prefill, handoffs),
            can_stay=stays,
            predicted_tokens=self._main_gateways.predicted_tokens(row),
        )
        where = placed(self._disaggregation, request)
        if where == "decode":
            self.submit(target, row, now)
            return
        source = self._choose(prefill, row, now)
        if where == "prefill" or source is None:
            self._main_gateways.withdraw(row, now)
        if source is None:
            self.turn_away(row)
        elif where == "prefill":
            handoffs.stay(row, source, now)
        else:
            num_tokens = int(self._trace.num_prompt_tokens[row])
            if self.migrations is not None:
                num_tokens += self.migrations.carried(row)
            handoffs.begin(row, source, target, num_tokens, now)

    def _choose(self, pool: Pool, row: int, now: float) -> Member | None:
        assert pool.gateways is not None
        place = pool.gateways.choose(row, now)
        return None if place == REJECT else pool.places[place]

    def turn_away(self, row: int) -> None:
        """Answer a request without serving it; what it was before is forgotten. Mutates."""
        self.turned_away[row] = True
        begin_anew(self._main.table, [row])
        self._main.table["num_output_tokens"][row] = 0
        if self.migrations is not None:
            self.migrations.forget(row)
        self._tell_ended([row], self._world.now)

    def place_again(self, rows: list[int]) -> None:
        """Place requests whose replica was lost, and those that waited for one. Mutates."""
        rows, self.unplaced = [*rows, *self.unplaced], []
        for row in rows:
            self.send(row)

    def give_up(self, rows: list[int]) -> None:
        """Tell the clients that requests are lost."""
        self._tell_ended(rows, self._world.now)

    def _tell_ended(self, rows: list[int], time: float) -> None:
        self.clients.ended(rows, time)
        self.standstill.ended(time)

    def describe_ranks(self) -> dict[str, Any] | None:
        """Return what it cost that ranks step together, for the summary; None if none do."""
        return self.drive.lock_step.describe() if isinstance(self.drive, LockStepDrive) else None

    @property
    def is_done(self) -> bool:
        """Whether all requests have been sent and have ended."""
        if not self.clients.all_sent or self.unplaced or self.handoffs or self._num_held_back:
            return False
        return not any(m is not None and m.rows for pool in self.pools for m in pool.places)

    def submit(self, member: Member, row: int, now: float) -> None:
        """Give a request to a replica. Mutates."""
        fetches = self.fetches
        if fetches is not None and member.pool is fetches.pool and member.life is not Life.FAILED:
            fetches.prepare(row, member, now)
        if self.migrations is not None:
            self.migrations.bring(row, member)
        member.submit(row, now)
        if member.life is not Life.FAILED:
            self.drive.touch(member)

    # -- replicas tell ---------------------------------------------------------------------------

    def ended(self, member: Member, rows: list[int], time: float) -> None:
        """Learn that requests have ended on a replica; see :class:`kvsim.fleet.drive.Watcher`."""
        if member.pool is self._prefill:
            assert self.handoffs is not None
            for row in rows:
                if self.handoffs.has_stayed(row):
                    self.handoffs.write_down(row)
                    self._tell_ended([row], time)
                else:
                    self.handoffs.prompt_ended(row, time)
        else:
            if self.handoffs is not None:
                self.handoffs.forget_refused(rows, time)
            self._tell_ended(rows, time)

    def begun(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Learn that a request has blocks for KV that is elsewhere, or does without it."""
        if self.fetches is not None and member.pool is self.fetches.pool:
            self.fetches.begun(row, num_tokens, time)
        elif self.handoffs is not None:
            self.handoffs.asked(row, num_tokens, time)
        elif self.moves is not None:
            self.moves.asked(row, num_tokens, time)

    # -- looks -----------------------------------------------------------------------------------

    def next_look(self, now: float, limit: float) -> float:
        """Return when routers' metrics are next read; see :class:`kvsim.fleet.drive.Watcher`."""
        if self.clients.all_sent and not self._num_held_back:
            return math.inf
        every = self._coupled
        return min(gateways.next_look(now, limit, every=every) for gateways in self._gateways)

    def look(self, time: float) -> None:
        """Read the metrics of replicas who have all come to a time. Mutates."""
        for gateways in self._gateways:
            gateways.look(time)

    def unblock(self) -> bool:
        """Let requests go on that wait for each other; see :class:`kvsim.fleet.drive.Watcher`."""
        return self.standstill.solve()

    @property
    def _num_held_back(self) -> int:
        at_gate = 0 if self.admission is None else self.admission.num_waiting
        return at_gate + len(self.standstill.held_back)

    @property
    def _planned(self) -> NDArray[np.float64]:
        return self._trace.arrival_time

    @property
    def _main_gateways(self) -> Gateways:
        assert self._main.gateways is not None
        return self._main.gateways

    @property
    def _gateways(self) -> list[Gateways]:
        return [pool.gateways for pool in self.pools if pool.gateways is not None]


def is_there(pool: Pool) -> bool:
    """Whether a pool has replicas, as far as its gateways know."""
    return pool.lifecycle is None or bool(pool.lifecycle.choosable())


def serve_alone(
    replica: Replica, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]
) -> None:
    """Serve requests to their end while nothing outside reaches the replica. Mutates."""
    replica.state.limits.backlog = backlog_of(replica.state)
    replica.submit(request_ids, arrival_times)
    replica.advance(math.inf)
