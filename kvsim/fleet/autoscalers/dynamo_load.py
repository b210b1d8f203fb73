"""Dynamo's planner, load mode."""

from __future__ import annotations

from kvsim.fleet.autoscaler import AUTOSCALERS, Autoscaler, PoolLoad
from kvsim.fleet.parameters import Limit  # noqa: TC001 - read when one is made


@AUTOSCALERS.register("dynamo-load")
class LoadPlanner(Autoscaler):
    """One more if any replica's utilisation is above ``up``, one less if all are below ``down``.

    Utilisation is KV in use, and the tokens of prompts not computed yet, over the capacity. Nothing
    is decided while a replica is starting.

    Source: components/src/dynamo/planner/core/load_scaling.py at 0c6da1e, aggregated replicas; the
    defaults are of throughput, those of latency are 0.4 and 0.1.

    Parameters
    ----------
    up, down : utilisation
    """

    interval = 5.0

    def __init__(self, *, up: Limit = 1.0, down: Limit = 0.6) -> None:
        self._up, self._down = up, down

    def desired(self, pool: PoolLoad) -> int:  # noqa: D102
        number = pool.num_replicas
        if pool.num_starting:
            return number
        capacity = pool.num_kv_tokens
        used = [one.kv_usage + one.queued_tokens / capacity for one in pool.ready]
        if pool.num_unplaced or any(share > self._up for share in used):
            return number + 1
        return number - all(share < self._down for share in used)
