"""The requests of a fleet that are between two replicas, and the KV that goes from one to another.

docs/howto/disaggregation.md tells the terms of a TTFT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.admission.admissibility import begin_anew, whole_requests
from kvsim.fleet.disaggregation.handoff import Handoff
from kvsim.fleet.disaggregation.placement_context import PlacementContext
from kvsim.fleet.disaggregation.policy import placed
from kvsim.fleet.disaggregation.transfer_size import num_descriptors, transfer_bytes
from kvsim.fleet.disaggregation.transfers import Transfers
from kvsim.fleet.feature import Feature
from kvsim.fleet.scaling.failures import Failures
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.fleet.feature import Host
    from kvsim.fleet.member import Member
    from kvsim.fleet.plan import Plan
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World
    from kvsim.results.totals import Totals


class Handoffs(Feature):
    """Brings requests from where their prompts are computed to where they go on.

    Parameters
    ----------
    world : SimPy's
    host : the fleet
    prefill, main : where prompts are computed, and where requests go on
    plan : of the run
    carried : tells how many tokens of output a request has that another replica computed

    Attributes
    ----------
    prefill_place : number of the replica that computed each prompt apart, -1 for none
    num_taken_back : times that a request began anew
    """

    def __init__(
        self,
        world: World,
        host: Host,
        prefill: Pool,
        main: Pool,
        plan: Plan,
        carried: Callable[[int], int],
    ) -> None:
        config, num_requests = plan.config, len(main.trace)
        self._world, self._host, self._drive = world, host, host.drive
        self._main, self._prefill = main, prefill
        self._rule, self._carried = plan.disaggregation, carried
        self._failures = plan.failures or Failures()
        self._protocol = config.kv_transfer_protocol
        self._proxy_latency = config.proxy_latency
        self._takes_first_tokens = config.first_token_from == "prefill"
        self._may_stay = np.zeros(num_requests, dtype=np.bool_)
        if self._rule.stays:
            self._may_stay = whole_requests(main.setup, prefill.setup, main.trace)
        self._transfers = Transfers(world, plan.fabric)
        self._open: dict[int, Handoff] = {}
        self._earlier: list[float] = []
        self._leases: dict[tuple[int, int], Handoff] = {}  # by replica and row
        self._stayed: dict[int, Member] = {}  # where requests are served whole, of prefill replicas
        self._transfer_time = np.zeros(num_requests)
        self.prefill_place = np.full(num_requests, -1, dtype=np.int32)
        self.num_taken_back = 0
        self._own_tokens: dict[int, int] = {}  # of prompts, in the cache where they go on

    @property
    def num_open(self) -> int:  # type: ignore[override]
        """Requests between two replicas."""
        return len(self._open)

    def describe(self) -> dict[str, Any]:
        """Return the transfers of KV from one replica to another."""
        times = self._transfer_time[self._transfer_time > 0]
        times = np.concatenate([times, self._earlier]) if self._earlier else times
        described = {
            "num_transfers": len(times),
            "bytes": self._transfers.num_bytes,
            "num_taken_back": self.num_taken_back,
            "mean_ms": 1000.0 * float(times.mean()) if len(times) else None,
            "p99_ms": 1000.0 * float(np.percentile(times, 99)) if len(times) else None,
        }
        return {"kv_transfers": described}

    def on_place(self, row: int, target: Member | None, now: float) -> bool:
        """Place a request on its decode replica, on a prefill replica, or on both. Mutates."""
        self.forget(row)
        if target is None:
            return False
        request = PlacementContext(
            *(self._main.trace, row, now, target, self._main, self._prefill),
            prompts_at=self.prompts_at,
            rows_for=self.rows_for,
            can_stay=bool(self._may_stay[row]),
            predicted_tokens=self._main.gateways.predicted_tokens(row),
        )
        where = placed(self._rule, request)
        if where == "decode":
            return False
        source = self._host.choose(self._prefill, row, now)
        if where == "prefill" or source is None:
            self._main.gateways.withdraw(row, now)
        if source is None:
            self._host.turn_away(row)
        elif where == "prefill":
            self.stay(row, source, now)
        else:
            num_tokens = int(self._main.trace.num_prompt_tokens[row]) + self._carried(row)
            self.begin(row, source, target, num_tokens, now)
        return True

    def on_ended(self, member: Member, rows: list[int], time: float) -> bool:  # noqa: D102
        if member.role != "prefill":
            self.forget_refused(rows, time)
            return False
        for row in rows:
            if self.has_stayed(row):
                self.write_down(row)
                self._host.tell_ended([row], time)
            else:
                self.prompt_ended(row, time)
        return True

    def begin(self, row: int, source: Member, target: Member, num_tokens: int, now: float) -> None:
        """Let one replica compute a prompt of so many tokens, and another one go on. Mutates."""
        self._open[row] = Handoff(row, source, target, num_tokens)
        self.prefill_place[row] = source.number
        # A replica holds blocks for one attempt of a request only.
        self._end_lease(self._leases.get((source.number, row)))
        source.replica.keep(row, keeps=True)
        target.replica.offer(row, num_tokens)
        self._host.submit(source, row, now)
        if self._protocol == "push":
            self._send_on(self._open[row])

    def stay(self, row: int, source: Member, now: float) -> None:
        """Let a prefill replica serve a whole request. Mutates."""
        self._stayed[row] = source
        self._end_lease(self._leases.get((source.number, row)))
        source.replica.keep(row, keeps=False)
        self._host.submit(source, row, now)
        asked = self._main.contents.asked_tokens(row)
        source.replica.limit(row, int(self._main.trace.num_output_tokens[row]), asked=asked)

    def leave(self, row: int) -> None:
        """Learn that a request does not go on where it stayed. Mutates."""
        self._stayed.pop(row).replica.limit(row, 1)
        begin_anew(self._prefill.table, [row])

    def has_stayed(self, row: int) -> bool:
        """Whether a prefill replica serves a whole request, or has done so."""
        return row in self._stayed

    def write_down(self, row: int) -> None:
        """Write a request that stayed into the table of those that decode replicas end. Mutates.

        It came when it was sent, which may be before a prefill replica got it.
        """
        table = self._main.table
        sent = table["arrival_time"][row]
        table[row] = self._prefill.table[row]
        table["arrival_time"][row] = sent

    def prompts_at(self, member: Member) -> list[int]:
        """Return the requests whose prompts are in hand at a prefill replica."""
        rows = list(member.rows)
        if not any(row in self._stayed for row in rows):
            return rows
        started = member.replica.first_tokens()
        return [row for row in rows if row not in started]

    def rows_for(self, member: Member) -> list[int]:
        """Return the requests at a decode replica, and those on their way to it."""
        coming = [one.row for one in self._open.values() if one.target is member]
        return list(dict.fromkeys([*member.rows, *coming]))

    def forget(self, row: int) -> None:
        """Forget what became of earlier attempts of a request, which is placed (again). Mutates."""
        if self.prefill_place[row] < 0:
            return
        self._prefill.gateways.catch_up()
        begin_anew(self._prefill.table, [row])
        self.prefill_place[row] = -1
        if self._transfer_time[row]:
            self._earlier.append(float(self._transfer_time[row]))
            self._transfer_time[row] = 0.0

    def on_started(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Learn that the target has blocks for the tokens it lacks, or does without. Mutates."""
        if member.role == "prefill":
            return
        handoff = self._open[row]
        handoff.num_tokens, handoff.asked_time = num_tokens, time
        if num_tokens > 0:
            self._own_tokens[row] = handoff.num_offered - num_tokens
        else:  # all is there, or computed there: its engine says how much it hit
            self._own_tokens.pop(row, None)
        self._start_if_ready(handoff, time)

    def prompt_ended(self, row: int, time: float) -> None:
        """Learn that the source has ended its part. Mutates."""
        handoff = self._open[row]
        if self._prefill.table["finish_reason"][row] != FinishReason.FINISHED:
            raise RuntimeError(f"request {row}: its prompt cannot be computed, and was sent")
        handoff.is_computed = True
        if self._protocol == "push":
            self._start_if_ready(handoff, time)
        else:
            arrival = time + self._proxy_latency
            self._world.call_at(arrival, lambda: self._send_on(handoff))

    def _send_on(self, handoff: Handoff) -> None:
        """Give a request to the replica that goes on."""
        if self._is_open(handoff):
            handoff.is_sent_on = True
            self._host.submit(handoff.target, handoff.row, self._world.now)

    def _start_if_ready(self, handoff: Handoff, time: float) -> None:
        if not (handoff.is_computed and handoff.has_asked):
            return
        if not (handoff.source.is_alive and handoff.target.is_alive):
            return
        if handoff.num_tokens == 0:  # all is there, or is computed there: only the notice goes
            self._world.call_at(time, lambda: self._release(handoff))
            return
        setup, tokens = self._main.setup, handoff.num_tokens
        handoff.start_time = time
        handoff.transfer = self._transfers.begin(
            handoff.source.number,
            handoff.target.number,
            transfer_bytes(setup, tokens),
            num_descriptors(setup, tokens),
            time,
            lambda: self._see_end(handoff),
        )

    def _see_end(self, handoff: Handoff) -> None:
        """Learn that the KV of a request is where it goes on."""
        now = self._world.now
        handoff.end_time = now
        self._transfer_time[handoff.row] = now - handoff.start_time
        handoff.target.replica.report(now, received=handoff.row)
        self._drive.touch(handoff.target)
        self._release(handoff)

    def _release(self, handoff: Handoff) -> None:
        """Let the source free what was read."""
        if not self._is_open(handoff):
            return
        source, now = handoff.source, self._world.now
        if source.is_alive:
            source.last_end_time = max(source.last_end_time, now)
            source.replica.report(now, sent=handoff.row)
            self._drive.touch(source)
        del self._open[handoff.row]

    def _is_open(self, handoff: Handoff) -> bool:
        return self._open.get(handoff.row) is handoff

    def on_run_ended(self) -> None:
        """Note how many tokens of each prompt its decode replica had in its own cache. Mutates.

        Where a prompt was computed apart, what was handed over is none of them.
        """
        found = self._main.table["num_cached_tokens"].astype(np.int64)
        apart = [row for row in self._own_tokens if self.prefill_place[row] >= 0]
        found[apart] = [self._own_tokens[row] for row in apart]
        self._main.own_hits = found

    def settle(self, totals: Mapping[int, Totals]) -> None:  # noqa: D102
        del totals
        table = self._main.table
        if self._transfer_time.any():
            table["transfer_time"] = self._transfer_time
        table["prefill_replica"] = self.prefill_place
        self.on_resumed(range(len(table)))

    def on_resumed(self, rows: Sequence[int]) -> None:
        """Add the results of their prompts to what the table says of requests. Mutates.

        A decode replica that lacks little of a pushed prompt may compute that itself, and before.
        """
        for row in [row for row in rows if row in self._stayed]:
            self.write_down(row)
        apart = np.array([row for row in rows if self.prefill_place[row] >= 0], np.int64)
        table, prompts = self._main.table, self._prefill.table
        table["num_preemptions"][apart] += prompts["num_preemptions"][apart]
        if self._takes_first_tokens:
            both = table["first_token_time"][apart], prompts["first_token_time"][apart]
            table["first_token_time"][apart] = np.fmin(*both)
        own, there = table["first_scheduled_time"][apart], prompts["first_scheduled_time"][apart]
        first = apart[~(own < there) & ~np.isnan(there)]
        for name in ("first_scheduled_time", "num_cached_tokens"):
            table[name][first] = prompts[name][first]

    # -- requests that wait for each other ---------------------------------------------------------

    @property
    def awaits_something(self) -> bool:  # type: ignore[override]
        """Whether KV is on its way, or blocks of a lost replica's requests will be free."""
        return bool(self._leases) or any(one.is_on_its_way for one in self._open.values())

    def is_open(self, row: int) -> bool:
        """Whether a request is between two replicas."""
        return row in self._open

    def holders(self) -> list[int]:
        """Return the requests between two replicas of which one has blocks for what is handed over.

        They are those that a replica has computed, or has room for.
        """
        return [one.row for one in self._open.values() if one.is_computed or one.has_asked]

    def take_back(self, row: int, now: float) -> None:
        """Take a request from both its replicas, which free what they hold for it. Mutates."""
        handoff = self._open.pop(row)
        source, target = handoff.source, handoff.target
        if handoff.is_computed:
            source.last_end_time = max(source.last_end_time, now)
            source.replica.drop_pinned(row, now)
        else:
            source.withdraw(row, now)
        target.withdraw(row, now)
        self._drive.touch(source)
        self._drive.touch(target)
        begin_anew(self._main.table, [row])

    # -- replicas come and go ----------------------------------------------------------------------

    def waits_for(self, member: Member) -> bool:
        """Whether a request is on its way from or to a replica."""
        return any(member in (one.source, one.target) for one in self._open.values())

    def on_lost(self, member: Member) -> None:
        """Break off the transfers from and to a replica, which runs no more. Mutates.

        What it held for others is gone.
        """
        for handoff in self._open.values():
            if member in (handoff.source, handoff.target):
                self._transfers.cancel(handoff.transfer)
            if member is handoff.source:
                member.replica.drop_pinned(handoff.row, self._world.now)
        for number, row in [one for one in self._leases if one[0] == member.number]:
            del self._leases[number, row]
            member.replica.drop_pinned(row, self._world.now)

    def on_detected(self, member: Member) -> list[int]:
        """Forget the requests from and to a replica that is found to have failed. Mutates.

        The other replica gives up what it does for them; but a prompt's blocks that nobody comes
        for are held until so many seconds after the failure, and where decode replicas recompute,
        one that has blocks for a prompt goes on alone.

        Returns
        -------
        list[int]
            Those who are lost: neither have they ended, nor can the other replica go on alone.
        """
        lease, recomputes = self._failures.lease, self._failures.recomputes
        for row in [row for row in member.rows if row in self._stayed]:
            self.write_down(row)
            self.leave(row)
        found = [one for one in self._open.values() if member in (one.source, one.target)]
        lost = []
        for handoff in found:
            row = handoff.row
            del self._open[row]
            if handoff.source is member:
                is_lost = self._lose_source(handoff, recomputes=recomputes)
            else:
                is_lost = self._main.table["finish_reason"][row] != FinishReason.FINISHED
                self._lose_target(handoff, member.end_time + lease)
            if is_lost:
                lost.append(row)
            elif not handoff.is_computed:
                self.prefill_place[row] = -1
        return lost

    def forget_refused(self, rows: Sequence[int], time: float) -> None:
        """Free what is held for requests that their decode replica has refused for ever. Mutates.

        Their KV and the slots it leaves to drafts do not fit there at once.
        """
        for row in [row for row in rows if row in self._open]:
            if self._main.table["finish_reason"][row] == FinishReason.REJECTED:
                self._lose_target(self._open.pop(row), time)

    def _lose_source(self, handoff: Handoff, *, recomputes: bool) -> bool:
        """Take a request back from where it would have gone on, unless it does so alone."""
        row, target, now = handoff.row, handoff.target, self._world.now
        computes = recomputes and handoff.has_asked and target.is_alive
        if handoff.num_tokens == 0 or computes:
            handoff.source.rows.pop(row, None)
            if handoff.num_tokens:
                target.replica.report(now, received=row, failed=True)
                self._drive.touch(target)
            return False
        target.withdraw(row, now)
        if target.is_alive:
            self._drive.touch(target)
        return True

    def _lose_target(self, handoff: Handoff, lease_end: float) -> None:
        """Let the source give up, and free in the end what is computed."""
        row, source, now = handoff.row, handoff.source, self._world.now
        if handoff.is_computed and source.is_alive:
            self._leases[source.number, row] = handoff
            self._world.call_at(max(lease_end, now), lambda: self._end_lease(handoff))
            return
        source.withdraw(row, now)
        if source.is_alive:
            self._drive.touch(source)

    def _end_lease(self, handoff: Handoff | None) -> None:
        """Let a replica free what nobody has come for, unless it has."""
        if handoff is None or handoff not in self._leases.values():
            return
        source = handoff.source
        del self._leases[source.number, handoff.row]
        source.last_end_time = max(source.last_end_time, self._world.now)
        source.replica.drop_pinned(handoff.row, self._world.now)
        if source.is_alive:
            self._drive.touch(source)
