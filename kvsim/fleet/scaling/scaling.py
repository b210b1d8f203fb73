"""The loop of an autoscaler: read a pool's load at regular intervals, and resize the pool."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.autoscalers.dynamo_throughput import sustained_rate
from kvsim.fleet.facts import decode_timer, prefill_timer
from kvsim.fleet.member import Life
from kvsim.fleet.scaling.autoscaler import Load, PoolLoad
from kvsim.fleet.scaling.traffic import traffic_between
from kvsim.fleet.world import Phase

if TYPE_CHECKING:
    from kvsim.fleet.feature import Host
    from kvsim.fleet.member import Member
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.scaling.autoscaler import Autoscaler
    from kvsim.fleet.scaling.lifecycle import Lifecycle
    from kvsim.fleet.scaling.traffic import Traffic
    from kvsim.fleet.world import Process, World


class Scaling:
    """Runs an autoscaler at each of its intervals.

    Parameters
    ----------
    world : the SimPy environment
    pool : the pool to resize
    lifecycle : lifecycle of its replicas
    autoscaler : sets the number of replicas
    host : the fleet
    end_time : time at which replicas stop, even with unfinished requests, seconds
    """

    def __init__(
        self,
        world: World,
        pool: Pool,
        lifecycle: Lifecycle,
        autoscaler: Autoscaler,
        host: Host,
        end_time: float,
    ) -> None:
        self._world, self._pool, self._lifecycle = world, pool, lifecycle
        self._autoscaler, self._host = autoscaler, host
        self._end_time = end_time
        setup = pool.setup
        most = setup.scheduler_config.max_num_batched_tokens
        self._prefill_rate = most / prefill_timer(setup)(most, 0)
        self._step_time = decode_timer(setup)
        self.num_events = 0  # decisions that changed the number of replicas

    def process(self) -> Process:
        """Run the autoscaler until all requests have ended."""
        world, scaler = self._world, self._autoscaler
        start, count, looks = world.now, 1, 1
        while not self._host.is_done and world.now < self._end_time:
            due, look = start + count * scaler.interval, start + looks * scaler.look_interval
            yield world.at(min(due, look), Phase.STEP_ENDS)
            self._lifecycle.sweep()
            pool = self._pool_load(world.now - start)
            scaler.look(pool)
            looks += look <= world.now
            if world.now < due:
                continue
            count += 1
            wanted = scaler.desired(pool)
            if not isinstance(wanted, int | np.integer):
                name = type(scaler).__name__
                raise ValueError(
                    f"autoscaler {name} wants {wanted!r} replicas: must be a whole number"
                )
            wanted = min(max(int(wanted), scaler.least), scaler.most)
            if wanted != pool.num_replicas:
                self.num_events += self._lifecycle.resize(wanted)

    def sustained_rate(self) -> float:
        """Return the largest rate of the run's requests that a replica sustains, requests/s."""
        pool = self._pool_load(self._world.now)
        traffic = pool.traffic(math.inf)
        return sustained_rate(pool, traffic, math.inf) if traffic.output_tokens else 0.0

    def _pool_load(self, now: float) -> PoolLoad:
        kv = self._pool.setup.kv
        return PoolLoad(
            now,
            [self._load(member) for member in self._pool.choosable()],
            len(self._lifecycle.members(Life.STARTING)),
            len(self._host.unplaced),
            kv.num_gpu_blocks * kv.block_size,
            kv.block_size,
            self._prefill_rate,
            self._step_time,
            self._pool.setup.scheduler_config.max_num_seqs,
            self._traffic,
            self._pool.setup.scheduler_config.max_model_len,
            self._pool.role,
        )

    def _traffic(self, seconds: float) -> Traffic:
        now = self._world.now
        return traffic_between(self._host.clients.sent_time, self._pool.table, now - seconds, now)

    def _load(self, member: Member) -> Load:
        waiting, running, usage, *_ = member.replica.metrics()
        started, computed = member.replica.first_tokens(), member.replica.computed_tokens()
        prompts = self._pool.trace.num_prompt_tokens
        left = (prompts[k] - computed.get(k, 0) for k in member.rows if k not in started)
        queued = sum(max(int(number), 0) for number in left)
        mean = float(prompts[list(member.rows)].mean()) if member.rows else 0.0
        return Load(waiting, running, usage, queued, mean, member.number)
