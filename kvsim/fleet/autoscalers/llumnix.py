"""Llumnix's scaling by freeness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Limit  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Load, PoolLoad

if TYPE_CHECKING:
    from collections.abc import Sequence


@AUTOSCALERS.register("llumnix")
class Freeness(Autoscaler):
    """Add a replica if freeness is below ``up``; remove one if it would stay above ``down``.

    Freeness is (free blocks - blocks that waiting requests need) / requests, over the pool.

    Source: llumnix at 24220fb8, scaling_policy.py.

    Parameters
    ----------
    up, down : limits of freeness, blocks per request
    """

    interval = 10.0

    def __init__(self, *, up: Limit = 10.0, down: Limit = 60.0) -> None:
        self._up, self._down = up, down

    def desired(self, pool: PoolLoad) -> int:
        number = pool.num_replicas
        if pool.num_starting:
            return number
        if pool.num_unplaced or self.freeness(pool, pool.ready) < self._up:
            return number + 1
        fewer = len(pool.ready) > 1 and self.freeness(pool, pool.ready[:-1]) > self._down
        return number - fewer

    def freeness(self, pool: PoolLoad, ready: Sequence[Load]) -> float:
        """Return the freeness of some replicas if they had all of the pool's requests."""
        blocks = pool.num_kv_tokens / pool.block_size
        used = sum(one.kv_usage for one in pool.ready) * blocks
        wanted = sum(one.queued_tokens for one in pool.ready) / pool.block_size
        requests = sum(one.num_running + one.num_waiting for one in pool.ready)
        return (len(ready) * blocks - used - wanted) / max(requests, 1)
