"""Dynamo's planner, load mode."""

from __future__ import annotations

from kvsim.fleet.parameters import Limit  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, PoolLoad


@AUTOSCALERS.register("dynamo-load")
class LoadPlanner(Autoscaler):
    """Add a replica if any has utilisation above ``up``; remove one if all are below ``down``.

    Utilisation is (tokens of KV in use + prompt tokens not computed yet) / KV capacity. In a
    prefill pool it is prompt tokens not computed yet / ``max_model_len``, and a replica is added
    at ``prefill-up`` or more, and removed below ``prefill-down``. Nothing changes while a replica
    starts.

    Source: components/src/dynamo/planner/core/load_scaling.py at 0c6da1e. The defaults are
    Dynamo's for throughput. Dynamo's defaults for latency are 0.4 and 0.1, and in a prefill pool
    0.1 and 0; instead of 0, give a value just above 0.

    Parameters
    ----------
    up, down : utilisation above which a replica is added, and below which one is removed
    prefill_up, prefill_down : the same limits in a prefill pool
    """

    interval = 5.0

    def __init__(
        self,
        *,
        up: Limit = 1.0,
        down: Limit = 0.6,
        prefill_up: Limit = 1.0,
        prefill_down: Limit = 0.1,
    ) -> None:
        self._up, self._down = up, down
        self._prefill_up, self._prefill_down = prefill_up, prefill_down

    def desired(self, pool: PoolLoad) -> int:
        number = pool.num_replicas
        if pool.num_starting:
            return number
        if pool.role == "prefill":
            used = [one.queued_tokens / pool.max_model_len for one in pool.ready]
            is_full, down = any(share >= self._prefill_up for share in used), self._prefill_down
        else:
            capacity = pool.num_kv_tokens
            used = [one.kv_usage + one.queued_tokens / capacity for one in pool.ready]
            is_full, down = any(share > self._up for share in used), self._down
        if pool.num_unplaced or is_full:
            return number + 1
        return number - all(share < down for share in used)
