"""Handoffs of requests from prefill replicas to decode replicas, and the transfers of their KV.

docs/howto/disaggregation.md lists the terms of a TTFT.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.admission.admissibility import reset_requests, whole_requests
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
    """Moves requests from their prefill replicas to their decode replicas.

    Parameters
    ----------
    world : the SimPy environment
    host : the fleet
    prefill, main : the prefill pool and the decode pool
    plan : the plan of the run
    carried : returns the number of output tokens of a request that another replica computed

    Attributes
    ----------
    prefill_place : number of each request's prefill replica, -1 for none, shape (requests,)
    num_taken_back : number of requests withdrawn from both replicas and placed again
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
        self._stayed: dict[int, Member] = {}  # prefill replicas that serve whole requests, by row
        self._transfer_time = np.zeros(num_requests)
        self.prefill_place = np.full(num_requests, -1, dtype=np.int32)
        self.num_taken_back = 0
        self._own_tokens: dict[int, int] = {}  # cached prompt tokens at the decode replica, by row

    @property
    def num_open(self) -> int:  # type: ignore[override]
        """Number of requests in handoff."""
        return len(self._open)

    def describe(self) -> dict[str, Any]:
        """Return statistics of the KV transfers between replicas."""
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

    def on_ended(self, member: Member, rows: list[int], time: float) -> bool:
        if member.role != "prefill":
            self.free_refused(rows, time)
            return False
        for row in rows:
            if self.has_stayed(row):
                self.record(row)
                self._host.notify_ended([row], time)
            else:
                self.prompt_ended(row, time)
        return True

    def begin(self, row: int, source: Member, target: Member, num_tokens: int, now: float) -> None:
        """Assign the prefill of ``num_tokens`` to one replica, the decode to another. Mutates."""
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
        """Assign a whole request to a prefill replica. Mutates."""
        self._stayed[row] = source
        self._end_lease(self._leases.get((source.number, row)))
        source.replica.keep(row, keeps=False)
        self._host.submit(source, row, now)
        asked = self._main.contents.asked_tokens(row)
        source.replica.limit(row, int(self._main.trace.num_output_tokens[row]), asked=asked)

    def leave(self, row: int) -> None:
        """Undo the stay of a request at its prefill replica. Mutates."""
        self._stayed.pop(row).replica.limit(row, 1)
        reset_requests(self._prefill.table, [row])

    def has_stayed(self, row: int) -> bool:
        """Return True if a prefill replica serves, or has served, the whole request."""
        return row in self._stayed

    def record(self, row: int) -> None:
        """Copy the results of a request that its prefill replica served to the main table. Mutates.

        Its arrival time stays the send time; the prefill replica may have received it later.
        """
        table = self._main.table
        sent = table["arrival_time"][row]
        table[row] = self._prefill.table[row]
        table["arrival_time"][row] = sent

    def prompts_at(self, member: Member) -> list[int]:
        """Return the requests at a prefill replica without a first token."""
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
        """Reset the earlier attempts, if any, of a request that is being placed. Mutates."""
        if self.prefill_place[row] < 0:
            return
        self._prefill.gateways.catch_up()
        reset_requests(self._prefill.table, [row])
        self.prefill_place[row] = -1
        if self._transfer_time[row]:
            self._earlier.append(float(self._transfer_time[row]))
            self._transfer_time[row] = 0.0

    def on_started(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Record that a target has allocated blocks for the ``num_tokens`` it lacks. Mutates."""
        if member.role == "prefill":
            return
        handoff = self._open[row]
        handoff.num_tokens = num_tokens
        if num_tokens > 0:
            self._own_tokens[row] = handoff.num_offered - num_tokens
        else:  # nothing to transfer: the target's engine reports its hits
            self._own_tokens.pop(row, None)
        self._start_if_ready(handoff, time)

    def prompt_ended(self, row: int, time: float) -> None:
        """Handle the end of a prefill at its source. Mutates."""
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
        """Submit a request to its decode replica."""
        if self._is_open(handoff):
            handoff.is_sent_on = True
            self._host.submit(handoff.target, handoff.row, self._world.now)

    def _start_if_ready(self, handoff: Handoff, time: float) -> None:
        if not (handoff.is_computed and handoff.has_allocated):
            return
        if not (handoff.source.is_alive and handoff.target.is_alive):
            return
        if handoff.num_tokens == 0:  # nothing to transfer: only the notice is sent
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
            lambda: self._on_end(handoff),
        )

    def _on_end(self, handoff: Handoff) -> None:
        """Handle the arrival of a request's KV at its target."""
        now = self._world.now
        handoff.end_time = now
        self._transfer_time[handoff.row] = now - handoff.start_time
        handoff.target.replica.report(now, received=handoff.row)
        self._drive.touch(handoff.target)
        self._release(handoff)

    def _release(self, handoff: Handoff) -> None:
        """Make the source free the blocks that the target has read."""
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
        """Record the tokens of each prompt that its decode replica had in its own cache. Mutates.

        Tokens transferred from a prefill replica do not count.
        """
        found = self._main.table["num_cached_tokens"].astype(np.int64)
        apart = [row for row in self._own_tokens if self.prefill_place[row] >= 0]
        found[apart] = [self._own_tokens[row] for row in apart]
        self._main.own_hits = found

    def settle(self, totals: Mapping[int, Totals]) -> None:
        del totals
        table = self._main.table
        if self._transfer_time.any():
            table["transfer_time"] = self._transfer_time
        table["prefill_replica"] = self.prefill_place
        self.on_resumed(range(len(table)))

    def on_resumed(self, rows: Sequence[int]) -> None:
        """Add the results of prefill replicas to requests in the main table. Mutates.

        First times are the earlier ones of both replicas: with push, a decode replica that lacks
        little of a prompt may compute it before the prefill replica does.
        """
        for row in [row for row in rows if row in self._stayed]:
            self.record(row)
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
        """Return True if KV is in transfer, or the end of a lease will free blocks."""
        return bool(self._leases) or any(one.is_on_its_way for one in self._open.values())

    def is_open(self, row: int) -> bool:
        """Return True if a request is in handoff."""
        return row in self._open

    def holders(self) -> list[int]:
        """Return the requests in handoff with a computed prompt, or with blocks at their target."""
        return [one.row for one in self._open.values() if one.is_computed or one.has_allocated]

    def roll_back(self, row: int, now: float) -> None:
        """Withdraw a request from both its replicas, which free its blocks. Mutates."""
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
        reset_requests(self._main.table, [row])

    # -- replicas start and stop -------------------------------------------------------------------

    def waits_for(self, member: Member) -> bool:
        """Return True if a request is in handoff from or to a replica."""
        return any(member in (one.source, one.target) for one in self._open.values())

    def on_lost(self, member: Member) -> None:
        """Cancel the transfers from and to a stopped replica; drop its pinned blocks. Mutates."""
        for handoff in self._open.values():
            if member in (handoff.source, handoff.target):
                self._transfers.cancel(handoff.transfer)
            if member is handoff.source:
                member.replica.drop_pinned(handoff.row, self._world.now)
        for number, row in [one for one in self._leases if one[0] == member.number]:
            del self._leases[number, row]
            member.replica.drop_pinned(row, self._world.now)

    def on_detected(self, member: Member) -> list[int]:
        """Remove the handoffs from and to a replica after its failure is detected. Mutates.

        The other replica of each handoff stops its part, with two exceptions: a source holds the
        blocks of a computed prompt until ``lease`` seconds after the failure, and if decode
        replicas recompute, a target that has blocks for a prompt continues alone.

        Returns
        -------
        list[int]
            The lost requests: those that have not ended and cannot continue on the other replica.
        """
        lease, recomputes = self._failures.lease, self._failures.recomputes
        for row in [row for row in member.rows if row in self._stayed]:
            self.record(row)
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

    def free_refused(self, rows: Sequence[int], time: float) -> None:
        """Free the blocks of requests that their decode replica has rejected. Mutates.

        A decode replica rejects a request if its KV and its slots for drafts do not fit together.
        """
        for row in [row for row in rows if row in self._open]:
            if self._main.table["finish_reason"][row] == FinishReason.REJECTED:
                self._lose_target(self._open.pop(row), time)

    def _lose_source(self, handoff: Handoff, *, recomputes: bool) -> bool:
        """Withdraw a request from its target, unless the target can continue; True if withdrawn."""
        row, target, now = handoff.row, handoff.target, self._world.now
        computes = recomputes and handoff.has_allocated and target.is_alive
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
        """Withdraw a request from its source, or free its computed blocks when the lease ends."""
        row, source, now = handoff.row, handoff.source, self._world.now
        if handoff.is_computed and source.is_alive:
            self._leases[source.number, row] = handoff
            self._world.call_at(max(lease_end, now), lambda: self._end_lease(handoff))
            return
        source.withdraw(row, now)
        if source.is_alive:
            self._drive.touch(source)

    def _end_lease(self, handoff: Handoff | None) -> None:
        """Free the blocks of a lease, unless they are free already."""
        if handoff is None or handoff not in self._leases.values():
            return
        source = handoff.source
        del self._leases[source.number, handoff.row]
        source.last_end_time = max(source.last_end_time, self._world.now)
        source.replica.drop_pinned(handoff.row, self._world.now)
        if source.is_alive:
            self._drive.touch(source)
