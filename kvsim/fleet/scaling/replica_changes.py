"""Replicas that start, drain and fail: the feature, and its statistics."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.fleet.feature import Feature
from kvsim.fleet.scaling.autoscaler import Autoscaler, PoolLoad
from kvsim.fleet.scaling.lifecycle import Lifecycle
from kvsim.fleet.scaling.scaling import Scaling
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.fleet.feature import Host
    from kvsim.fleet.member import Member
    from kvsim.fleet.migration.resumption import ResumedRequests
    from kvsim.fleet.plan import Plan
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.scaling.failures import Planned
    from kvsim.fleet.world import Process, World


#: States of replicas that a timeline counts.
COUNTS = ("ready", "starting", "draining")
#: Seconds over which arrivals are counted for the ideal fleet.
WINDOW = 60.0


class Constant(Autoscaler):
    """Keeps the number of replicas constant; the lifecycle replaces failed ones."""

    def __init__(self, number: int) -> None:
        self.least, self.most = 0, number

    def desired(self, pool: PoolLoad) -> int:
        return pool.num_replicas


class ChangingPool(NamedTuple):
    """A pool, the lifecycle of its replicas, and the loop that resizes it."""

    pool: Pool
    lifecycle: Lifecycle
    scaling: Scaling


class ReplicaChanges(Feature):
    """Starts, drains and fails the replicas of all pools.

    Parameters
    ----------
    world : the SimPy environment
    host : the fleet
    plan : the plan of the run
    make : function of pool, slot and time (seconds) that makes a replica
    migrations : keeps the progress of requests that move

    Raises
    ------
    ValueError
        If a failure is planned for a replica that does not exist.
    """

    def __init__(
        self,
        world: World,
        host: Host,
        plan: Plan,
        make: Callable[[Pool, int, float], Member],
        migrations: ResumedRequests,
    ) -> None:
        self._world, self._host, self._plan, self._migrations = world, host, plan, migrations
        self._end_time = world.now + plan.config.horizon
        scalers = [one.autoscaler for one in plan.pools]
        self._pools = [
            self._change(pool, partial(make, pool), scaler)
            for pool, scaler in zip(host.pools, scalers, strict=True)
        ]
        if plan.failures is not None and plan.failures.planned is not None:
            self._plan_failure(plan.failures.planned)

    def _change(
        self, pool: Pool, make: Callable[[int, float], Member], scaler: Autoscaler | None
    ) -> ChangingPool:
        """Return a pool with its lifecycle and scaling loop; schedule random failures. Mutates."""
        weights = pool.setup.memory.budget.weights * pool.gpus_per_replica
        lifecycle = Lifecycle(
            self._world,
            self._host,
            pool,
            make,
            cold_start=self._plan.cold_start(weights),
            failures=self._plan.failures,
            grace=math.inf if scaler is None else scaler.grace,
            table=self._host.pools[-1].table,
            migrations=self._migrations,
            end_time=self._end_time,
        )
        scaler = scaler or Constant(len(pool.members))
        scaling = Scaling(self._world, pool, lifecycle, scaler, self._host, self._end_time)
        for member in list(pool.members):
            lifecycle.plan_failure(member)
        return ChangingPool(pool, lifecycle, scaling)

    def _plan_failure(self, planned: Planned) -> None:
        time, place, role = planned
        changing = [one for one in self._pools if role in (one.pool.role, None)]
        if not changing:
            roles = " and ".join(one.pool.role for one in self._pools)
            raise ValueError(f"failures: pool={role}: must be one of {roles}")
        pool, lifecycle, _ = changing[-1]
        number = len(pool.places)
        if place >= number:
            raise ValueError(f"failures: replica={place}: must be below {number}")
        self._world.call_at(self._world.now + time, partial(lifecycle.fail_at, place))

    def processes(self) -> list[Process]:
        return [one.scaling.process() for one in self._pools]

    @property
    def waited_until(self) -> float:  # type: ignore[override]
        """Earliest end of the run, seconds; until then, requests wait at a failed replica."""
        return max(one.lifecycle.waited_until for one in self._pools)

    def describe(self) -> dict[str, Any]:
        """Return the number of replicas over time, the losses, and an ideal fleet's GPU hours."""
        first = float(self._pools[-1].pool.trace.arrival_time[0])
        pools = {one.pool.name: describe_pool(one, first) for one in self._pools}
        whole = next(iter(pools.values())) if len(pools) == 1 else _together(pools)
        return {"scaling": {"num_migrations": self._migrations.number, **whole}}


def _together(pools: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the statistics over all pools, and those of each pool."""
    timeline = merge([one["timeline"] for one in pools.values()])
    counts = ("num_scaling_events", "num_failures", "num_lost", "gpu_hours_perfect")
    whole: dict[str, Any] = {name: sum(one[name] for one in pools.values()) for name in counts}
    whole["peak_replicas"] = max(row["ready"] for row in timeline)
    failures = [row for one in pools.values() for row in one["failures"]]
    failures.sort(key=lambda row: (row["time"], row["replica"]))
    return whole | {"timeline": timeline, "failures": failures, "pools": pools}


def describe_pool(changing: ChangingPool, first: float) -> dict[str, Any]:
    """Return the statistics of one pool; times are since ``first``, seconds."""
    pool, lifecycle, scaling = changing
    timeline = [
        {"time": one.time - first, **dict(zip(COUNTS, one[1:], strict=True))}
        for one in lifecycle.changes
    ]
    return {
        "num_scaling_events": scaling.num_events,
        "num_failures": lifecycle.num_failures,
        "num_lost": lifecycle.num_lost,
        "peak_replicas": max(one.ready for one in lifecycle.changes),
        "gpu_hours_perfect": pool.gpus_per_replica
        * perfect_replica_hours(pool.table, scaling.sustained_rate()),
        "timeline": timeline,
        "failures": [
            {"time": time - first, "replica": number} for time, number in lifecycle.failed
        ],
    }


def merge(timelines: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """Return one timeline with the sums over several pools."""
    changes = sorted(
        (row["time"], k, place)
        for k, rows in enumerate(timelines)
        for place, row in enumerate(rows)
    )
    latest: list[Mapping[str, float]] = [rows[0] for rows in timelines]
    merged: list[dict[str, float]] = []
    for time, k, place in changes:
        latest[k] = timelines[k][place]
        row = {"time": time} | {name: sum(one[name] for one in latest) for name in COUNTS}
        if merged and merged[-1]["time"] == time:
            merged.pop()
        if not merged or {**merged[-1], "time": time} != row:
            merged.append(row)
    return merged


def perfect_replica_hours(table: NDArray[Any], rate: float) -> float:
    """Return the replica-hours of an ideal fleet, which resizes every minute without a delay.

    Every minute has ``ceil(arrivals / most)`` replicas (the bound of llm-d-autoscaling, issue
    1499). ``most`` is the number of requests that a replica answers in a minute: ``60 * rate``, or
    the largest number that any replica of the run answered, if that is more. The last minute ends
    with the run.
    """
    done = table[table["finish_reason"] == FinishReason.FINISHED]
    if not len(done):
        return 0.0
    start, end = float(table["arrival_time"].min()), float(done["finish_time"].max())
    minutes = ((done["finish_time"] - start) // WINDOW).astype(np.int64)
    pairs = minutes * (int(done["replica"].max()) + 1) + done["replica"]
    most = max(int(np.unique(pairs, return_counts=True)[1].max()), rate * WINDOW)
    arrivals = np.bincount(((done["arrival_time"] - start) // WINDOW).astype(np.int64))
    seconds = np.minimum(end - start - WINDOW * np.arange(len(arrivals)), WINDOW)
    return float((np.ceil(arrivals / most) * seconds).sum()) / 3600.0
