"""Live migration: requests move from one replica to another while they run.

Their KV is copied in stages: first the existing KV, while the request runs; then the rest, while it
is stopped. Only the last stage lengthens a gap between two tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.disaggregation.transfer_size import num_descriptors, transfer_bytes
from kvsim.fleet.disaggregation.transfers import Transfers
from kvsim.fleet.feature import Feature
from kvsim.fleet.member import Life
from kvsim.fleet.migration.policy import Candidate, Fullness
from kvsim.fleet.world import Phase
from kvsim.rules.blocks.attention import cdiv

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.feature import Host
    from kvsim.fleet.member import Member
    from kvsim.fleet.migration.policy import Migration
    from kvsim.fleet.migration.resumption import ResumedRequests
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import Process, World


@dataclass(slots=True, eq=False)
class LiveMigration:
    """One request in migration.

    Parameters
    ----------
    row : row of the trace
    source, target : the replicas
    num_copied : tokens with KV at the target, or in transfer
    num_stages : copies started while the request runs
    num_tokens : tokens with KV when the request is stopped; -1 before
    stop_time : time at which the request was stopped, seconds
    """

    row: int
    source: Member
    target: Member
    num_copied: int = 0
    num_stages: int = 0
    num_tokens: int = -1
    stop_time: float = -1.0


class LiveMigrations(Feature):
    """Checks the replicas periodically, and moves requests between them.

    The target reserves no blocks while a request runs at its source, and allocates them when the
    request arrives. A target without room at that time refuses the request, which stays.

    Parameters
    ----------
    world : the SimPy environment
    host : the fleet
    pool : the pool of the requests that move
    policy : chooses the requests and their targets
    fabric : the fabric that carries the KV
    migrations : keeps the progress of requests that move
    end_time : time at which replicas stop, seconds
    """

    def __init__(
        self,
        world: World,
        host: Host,
        pool: Pool,
        policy: Migration,
        fabric: Fabric,
        migrations: ResumedRequests,
        end_time: float,
    ) -> None:
        self._world, self._host, self._pool, self._policy = world, host, pool, policy
        self._drive = host.drive
        self._transfers = Transfers(world, fabric)
        self._migrations = migrations
        self._end_time = end_time
        self._open: dict[int, LiveMigration] = {}
        self._downtimes: list[float] = []
        self._num_refused = 0

    def processes(self) -> list[Process]:
        return [self._process()]

    def _process(self) -> Process:
        """Check the replicas at each interval until all requests have ended."""
        world, start, count = self._world, self._world.now, 0
        while not self._host.is_done and world.now < self._end_time:
            count += 1
            yield world.at(start + count * self._policy.interval, Phase.STEP_ENDS)
            self._start_migrations()

    def _start_migrations(self) -> None:
        """Start the migrations that the policy chooses, between replicas that have none."""
        busy = {one for move in self._open.values() for one in (move.source, move.target)}
        members = [m for m in self._pool.places if m is not None and m.is_alive and m not in busy]
        sizes = [self._fullness(member) for member in members]
        for k, to in self._policy.pairs(sizes):
            candidates = self._candidates(members[k])
            if not candidates:
                continue
            picked = self._policy.pick(candidates)
            if self._policy.pays(sizes[k], sizes[to], self._blocks(picked.num_tokens)):
                self._open[picked.row] = move = LiveMigration(picked.row, members[k], members[to])
                self._copy(move)

    def _fullness(self, member: Member) -> Fullness:
        waiting, running, usage = member.replica.load()
        wanted = 0
        if waiting:
            prompts = self._pool.trace.num_prompt_tokens
            is_in = {request.request_id for request in member.replica.held_requests()}
            wanted = sum(self._blocks(int(prompts[row])) for row in member.rows if row not in is_in)
        free = round((1 - usage) * self._pool.setup.kv.num_usable_blocks)
        return Fullness(free, wanted, waiting + running, member.life is Life.DRAINING)

    def _blocks(self, num_tokens: int) -> int:
        return cdiv(num_tokens, self._pool.setup.kv.block_size)

    def _candidates(self, member: Member) -> list[Candidate]:
        """Return the requests that decode on a replica."""
        return [
            Candidate(request.request_id, request.num_tokens)
            for request in member.replica.held_requests()
            if request.num_tokens > request.num_prompt_tokens and request.request_id in member.rows
        ]

    def _copy(self, move: LiveMigration) -> None:
        """Start a stage that copies the new full blocks. Mutates."""
        size = self._pool.setup.kv.block_size
        full = self._num_computed(move) // size * size
        move.num_copied, before = full, move.num_copied
        move.num_stages += 1
        self._send(move, full - before, self._world.now, lambda: self._on_stage(move))

    def _num_computed(self, move: LiveMigration) -> int:
        """Return the tokens of a request with KV at its source; -1 if it no longer runs there."""
        for request in move.source.replica.held_requests():
            if request.request_id == move.row:
                return min(int(request.num_computed_tokens), int(request.num_tokens) - 1)
        return -1

    def _send(
        self, move: LiveMigration, num_tokens: int, time: float, on_end: Callable[[], object]
    ) -> None:
        setup = self._pool.setup
        self._transfers.begin(
            move.source.number,
            move.target.number,
            transfer_bytes(setup, num_tokens) if num_tokens else 0,
            num_descriptors(setup, num_tokens),
            time,
            on_end,
        )

    def _on_stage(self, move: LiveMigration) -> None:
        """Start the next stage, or the last one, when a stage has arrived. Mutates."""
        num_tokens = self._num_computed(move)
        if num_tokens < move.num_copied:  # the request has ended, or was preempted
            del self._open[move.row]
            return
        left = self._blocks(num_tokens - move.num_copied)
        if left >= self._policy.last_blocks and move.num_stages < self._policy.most_stages:
            self._copy(move)
        else:
            self._stop(move)

    def _stop(self, move: LiveMigration) -> None:
        """Move a request to its target, or end the migration if it does not fit there. Mutates."""
        row, source, target, now = move.row, move.source, move.target, self._world.now
        room = self._fullness(target)
        needed = self._blocks(self._num_computed(move) + 1)
        if target.life is not Life.READY or room.num_free - room.num_wanted < needed:
            self._num_refused += 1
            del self._open[row]
            return
        self._migrations.see([row], source.replica.last_tokens())
        self._pool.gateways.follow(row, target.place)
        del source.rows[row]
        source.replica.withdraw(row, now)
        source.last_end_time = max(source.last_end_time, now)
        self._drive.touch(source)
        self._migrations.leave([row], is_lost=False)
        prompt = int(self._pool.trace.num_prompt_tokens[row])
        move.num_tokens = prompt + self._migrations.carried(row) - 1
        move.stop_time = now
        target.replica.offer(row, move.num_tokens)
        self._host.submit(target, row, now)

    def on_started(self, member: Member, row: int, num_tokens: int, time: float) -> None:
        """Copy the rest to a target that has blocks for ``num_tokens`` missing tokens. Mutates."""
        del member
        move = self._open[row]
        if num_tokens == 0:
            self._close(move, time)
            return
        left = min(num_tokens, move.num_tokens - move.num_copied)
        self._send(move, max(left, 0), time, lambda: self._arrive(move))

    def _arrive(self, move: LiveMigration) -> None:
        now = self._world.now
        move.target.replica.report(now, received=move.row)
        self._drive.touch(move.target)
        self._close(move, now)

    def _close(self, move: LiveMigration, time: float) -> None:
        del self._open[move.row]
        self._downtimes.append(time - move.stop_time)

    def describe(self) -> dict[str, Any]:
        """Return statistics of the migrations, with their downtimes."""
        times = np.array(self._downtimes)
        described = {
            "num_moves": len(times),
            "num_refused": self._num_refused,
            "bytes": self._transfers.num_bytes,
            "mean_downtime_ms": 1e3 * float(times.mean()) if len(times) else None,
            "p99_downtime_ms": 1e3 * float(np.percentile(times, 99)) if len(times) else None,
        }
        return {"migration": described}
