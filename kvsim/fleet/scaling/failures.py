"""Failures of replicas, and policies for their unfinished requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from kvsim.fleet.parameters import Count, Delay, Limit, Whole, refuse_unread
from kvsim.pool_config import Role  # noqa: TC001 - likewise
from kvsim.registry import Registry

if TYPE_CHECKING:
    from numpy.random import Generator

#: Seed word that separates these random numbers from those of workloads and routers.
FAILING = 0x4641494C


Policy = Literal["retry", "recompute", "migrate", "fail"]

#: Default lease, seconds. Source: vLLM's docs/features/nixl_connector_usage.md at 026c83f.
LEASE = 30.0
#: Default of the largest number of migrations of a request.
LIMIT = 3


class Planned(NamedTuple):
    """One failure: seconds after the start of the run, a slot, and the role of its pool.

    The role None stands for the pool that answers requests.
    """

    time: float
    place: int
    role: Role | None


class Failures:
    """Failures that the user plans, or that occur at a rate.

    Parameters
    ----------
    detection : seconds until a gateway detects a failure; requests sent in this time are also lost
    policy : handling of unfinished requests. ``retry``: start again, at most a hundred times;
        ``migrate``: continue on another replica with their output so far; ``fail``: end;
        ``recompute``: as ``retry``, but a decode replica that has blocks for the lost replica's KV
        computes this KV (vLLM's ``kv_load_failure_policy``)
    lease : seconds after a decode replica's failure until a prefill replica frees the blocks that
        were not read (vLLM's NIXL connector: 30 s without a heartbeat)
    limit : largest number of migrations of a request, 3; the next failure ends the request
        (Dynamo's default is 0, no migration)
    max_seq_len : limit on prompt and output tokens together; a longer request ends at its replica's
        failure instead of migrating; None for no limit
    """

    def __init__(
        self,
        *,
        detection: float = 10.0,
        policy: Policy = "retry",
        limit: int | None = None,
        lease: float | None = None,
        max_seq_len: int | None = None,
    ) -> None:
        if policy != "migrate":
            why = f"with policy={policy}"
            refuse_unread(why, "failures", limit=limit, max_seq_len=max_seq_len)
        self.needs_pools = policy == "recompute" or lease is not None
        self.detection, self.lease = detection, LEASE if lease is None else lease
        self.recomputes, self.migrates = policy == "recompute", policy == "migrate"
        self.retries = policy == "retry" or self.recomputes
        self.limit = LIMIT if limit is None else limit
        self.max_seq_len = math.inf if max_seq_len is None else max_seq_len
        self.rng: Generator = np.random.default_rng(0)

    def seed(self, seed: int) -> None:
        """Seed the random numbers for a run. Mutates."""
        self.rng = np.random.default_rng([seed, FAILING])

    def draw(self, num_gpus: int) -> float:
        """Return the remaining lifetime of a replica with ``num_gpus`` GPUs, seconds."""
        del num_gpus
        return math.inf

    @property
    def planned(self) -> Planned | None:
        return None


#: Factories take keyword parameters only.
FAILURES: Registry[Failures] = Registry("failures", None, Failures)


@FAILURES.register("rate")
class FailuresAtARate(Failures):
    """Every GPU fails at random, on average once in ``gpu_hours``; its replica fails with it.

    Source: 419 unplanned interruptions in 54 days on 16,384 H100s: one per 50,700 GPU-hours
    (Llama 3, arXiv 2407.21783, section 3.3.4).

    Parameters
    ----------
    gpu_hours : mean hours between two failures of one GPU
    detection, policy, limit, lease, max_seq_len : see :class:`Failures`
    """

    def __init__(
        self,
        *,
        gpu_hours: Limit = 50_700.0,
        detection: Delay = 10.0,
        policy: Policy = "retry",
        limit: Whole | None = None,
        lease: Delay | None = None,
        max_seq_len: Count | None = None,
    ) -> None:
        super().__init__(
            detection=detection, policy=policy, limit=limit, lease=lease, max_seq_len=max_seq_len
        )
        self._gpu_hours = gpu_hours

    def draw(self, num_gpus: int) -> float:
        return float(self.rng.exponential(self._gpu_hours * 3600.0 / num_gpus))


@FAILURES.register("at")
class PlannedFailure(Failures):
    """One replica fails at one time.

    Parameters
    ----------
    time : seconds after the start of the run
    replica : slot of the replica in its pool
    pool : role of the pool; by default the pool that answers requests
    detection, policy, limit, lease, max_seq_len : see :class:`Failures`
    """

    def __init__(
        self,
        *,
        time: Delay = 60.0,
        replica: Whole = 0,
        pool: Role | None = None,
        detection: Delay = 10.0,
        policy: Policy = "retry",
        limit: Whole | None = None,
        lease: Delay | None = None,
        max_seq_len: Count | None = None,
    ) -> None:
        super().__init__(
            detection=detection, policy=policy, limit=limit, lease=lease, max_seq_len=max_seq_len
        )
        self._planned = Planned(time, replica, pool)

    @property
    def planned(self) -> Planned:
        return self._planned
