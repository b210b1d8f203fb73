"""Pools whose replicas come and go: from a configuration to the processes that make them do so."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.autoscaler import Autoscaler, PoolLoad, make_autoscaler
from kvsim.fleet.cold_start import cold_start_seconds
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.failures import make_failures
from kvsim.fleet.lifecycle import Lifecycle
from kvsim.fleet.migration import MIGRATIONS
from kvsim.fleet.migrations import Migrations
from kvsim.fleet.moves import Moves
from kvsim.fleet.router import make_routers
from kvsim.fleet.scaling import Scaling
from kvsim.records.engine import VLLM
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.fleet.failures import Failures
    from kvsim.fleet.fleet import Fleet
    from kvsim.fleet.member import Member
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World
    from kvsim.pool_config import PoolConfig, Role


#: What a timeline counts: replicas by where they are in their lives.
COUNTS = ("ready", "starting", "draining")
#: Seconds over which arrivals are counted for the fleet that always has just enough.
WINDOW = 60.0


class Constant(Autoscaler):
    """As many replicas as there were; failed ones are replaced without it."""

    def __init__(self, number: int) -> None:
        self.least, self.most = 0, number

    def desired(self, pool: PoolLoad) -> int:  # noqa: D102
        return pool.num_replicas


def autoscaler_of(config: Config, asked: PoolConfig) -> Autoscaler | None:
    """Return who resizes a pool, None if nobody does.

    Raises
    ------
    ValueError
        For an autoscaler that cannot be, or a pool that begins outside its bounds.
    """
    text = asked.autoscaler or config.autoscaler
    if text is None:
        return None
    made = make_autoscaler(text)
    if not made.least <= asked.replicas <= made.most:
        raise ValueError(
            f"autoscaler: begins with {asked.replicas} replicas: must be {made.least} to "
            f"{made.most}, its min and max"
        )
    return made


def check_changes(config: Config, asked: PoolConfig, setup: Setup) -> None:
    """Refuse what cannot change while it runs.

    Raises
    ------
    ValueError
        With the reason.
    """
    flag = "failures" if config.failures is not None else "autoscaler"
    if setup.scheduler_type.rules_of != VLLM:
        raise ValueError(f"{flag}: scheduler {setup.scheduler!r} cannot end requests; vllm can")
    name = (asked.router or config.router).partition("+")[0]
    if not all(router.takes_changes for router in make_routers(asked.router or config.router)):
        raise ValueError(
            f"{flag}: router {name!r} counts its replicas once; round-robin, random, "
            "least-outstanding, power-of-two, least-kv, vllm-dp, llm-d and dynamo take changes"
        )


def check_failures(config: Config, *, apart: bool) -> None:
    """Refuse failures of which something needs prompts that are computed apart.

    Raises
    ------
    ValueError
        With what does.
    """
    if config.failures is None or apart:
        return
    if make_failures(config.failures, config.seed).needs_pools:
        raise ValueError(
            f"failures: {config.failures}: policy=recompute and lease are for prompts that are "
            "computed apart, and none are; give num_prefill_workers and num_decode_workers"
        )


def check_migration(config: Config, *, apart: bool) -> None:
    """Refuse what requests do not move beside.

    Raises
    ------
    ValueError
        With the reason.
    """
    beside = {
        "num_prefill_workers": apart,
        "kv_store": config.kv_store is not None,
        "failures": config.failures is not None,
    }
    for name, is_there in beside.items():
        if is_there:
            raise ValueError(f"migration: not modelled beside {name}")


def let_move(world: World, fleet: Fleet, config: Config) -> None:
    """Let running requests move between the replicas of the pool that answers. Mutates."""
    pool = fleet.pools[-1]
    if fleet.migrations is None:
        fleet.migrations = Migrations(pool.table)
    assert config.migration is not None
    fleet.moves = Moves(
        world,
        fleet.drive,
        pool,
        MIGRATIONS.make(config.migration),
        fabric_of(config.kv_transfer_fabric),
        fleet.migrations,
        submit=fleet.submit,
        is_done=lambda: fleet.is_done,
        end_time=world.now + config.horizon,
    )


def migrates(config: Config) -> bool:
    """Whether requests may go on elsewhere with what they have."""
    if config.migration is not None:
        return True
    return config.failures is not None and make_failures(config.failures, config.seed).migrates


def recomputes(config: Config) -> bool:
    """Whether decode replicas compute what they cannot read any more."""
    return config.failures is not None and make_failures(config.failures, config.seed).recomputes


def set_in_motion(
    world: World,
    fleet: Fleet,
    config: Config,
    make: Callable[[Pool, int, float], Member],
    autoscalers: Mapping[Role, Autoscaler | None],
) -> None:
    """Let the replicas of a fleet come, go and fail. Mutates the fleet.

    Raises
    ------
    ValueError
        If a failure is planned of a replica that there is not.
    """
    failures = None if config.failures is None else make_failures(config.failures, config.seed)
    fleet.migrations = Migrations(fleet.pools[-1].table)
    for pool in fleet.pools:
        move(world, fleet, config, pool, make, autoscalers[pool.role], failures)
    if failures is not None and failures.planned is not None:
        time, place, role = failures.planned
        pools = [one for one in fleet.pools if role in (one.role, None)]
        if not pools:
            roles = " and ".join(one.role for one in fleet.pools)
            raise ValueError(f"failures: pool={role}: there is none, only {roles}")
        if place >= len(pools[-1].places):
            number = len(pools[-1].places)
            raise ValueError(f"failures: replica={place}: there are {number}, from 0 on")
        assert pools[-1].lifecycle is not None
        world.call_at(world.now + time, partial(pools[-1].lifecycle.fail_at, place))


def weight_bytes(pool: Pool) -> int:
    """Return the bytes of weights of one replica, on all its GPUs."""
    return pool.setup.memory.budget.weights * pool.gpus_per_replica


def move(
    world: World,
    fleet: Fleet,
    config: Config,
    pool: Pool,
    make: Callable[[Pool, int, float], Member],
    autoscaler: Autoscaler | None,
    failures: Failures | None,
) -> None:
    """Let the replicas of one pool come, go and fail. Mutates it."""
    assert fleet.migrations is not None
    lifecycle = Lifecycle(
        world,
        fleet.drive,
        pool,
        partial(make, pool),
        cold_start=cold_start_seconds(config.cold_start, weight_bytes(pool)),
        failures=failures,
        grace=math.inf if autoscaler is None else autoscaler.grace,
        place_again=fleet.place_again,
        give_up=fleet.give_up,
        is_done=lambda: fleet.is_done,
        table=fleet.pools[-1].table,
        migrations=fleet.migrations,
        handoffs=fleet.handoffs,
        fetches=fleet.fetches,
        end_time=world.now + config.horizon,
    )
    pool.lifecycle = lifecycle
    pool.scaling = Scaling(
        world,
        pool,
        lifecycle,
        autoscaler or Constant(len(pool.members)),
        num_unplaced=lambda: len(fleet.unplaced),
        sent_time=lambda: fleet.clients.sent_time,
        is_done=lambda: fleet.is_done,
        end_time=world.now + config.horizon,
    )
    for member in list(pool.members):
        lifecycle.plan_failure(member)


def describe_scaling(fleet: Fleet) -> dict[str, Any] | None:
    """Say how the number of replicas went, what was lost, and how few would have done.

    None if replicas neither come nor go.
    """
    if fleet.migrations is None or fleet.pools[-1].lifecycle is None:
        return None
    first = float(fleet.pools[-1].trace.arrival_time[0])
    pools = {pool.name: describe_pool(pool, first) for pool in fleet.pools}
    if len(pools) == 1:
        whole = next(iter(pools.values()))
    else:
        timeline = merge([one["timeline"] for one in pools.values()])
        counts = ("num_scaling_events", "num_failures", "num_lost", "gpu_hours_perfect")
        whole = {name: sum(one[name] for one in pools.values()) for name in counts}
        whole["peak_replicas"] = max(row["ready"] for row in timeline)
        failures = [row for one in pools.values() for row in one["failures"]]
        failures.sort(key=lambda row: (row["time"], row["replica"]))
        whole |= {"timeline": timeline, "failures": failures, "pools": pools}
    return {"num_migrations": fleet.migrations.number, **whole}


def describe_pool(pool: Pool, first: float) -> dict[str, Any]:
    """Say the same of one pool; times are since ``first``, seconds."""
    lifecycle, scaling = pool.lifecycle, pool.scaling
    assert lifecycle is not None
    assert scaling is not None
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
    """Add what several pools have, from change to change."""
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
    """Return the replica-hours of a fleet that always had just enough, without a delay.

    In every minute ``ceil(arrivals / most)`` replicas (the bound of llm-d-autoscaling, issue 1499).
    ``most`` is what a replica answers in a minute at a ``rate``, requests per second, or what the
    best one of the run did, if that is more. The last minute ends with the run.
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
