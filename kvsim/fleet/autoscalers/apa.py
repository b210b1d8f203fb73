"""AIBrix's own pod autoscaler."""

from __future__ import annotations

import math
from collections import deque

from kvsim.fleet.parameters import Delay, Limit, Share  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Metric, PoolLoad
from kvsim.fleet.scaling.stabilizer import Stabilizer


@AUTOSCALERS.register("apa")
class AibrixAutoscaler(Autoscaler):
    """Set ``ceil(current * mean / target)`` replicas; the mean is over a window and all replicas.

    Within the tolerances nothing changes. A decision at most doubles or halves the number of
    replicas. After each growth, a cool-down must pass before the pool shrinks.

    Source: aibrix at e3e10f9e, podautoscaler/algorithm.

    Parameters
    ----------
    metric : the metric of the mean: waiting, running, requests (both) or kv
    target : target value of the metric per replica
    window : seconds over which the metric is averaged
    up_tolerance, down_tolerance : share of the target within which nothing changes
    cooldown : seconds from the last growth until the pool may shrink
    """

    interval = 10.0

    def __init__(
        self,
        *,
        metric: Metric = "requests",
        target: Limit = 50.0,
        window: Delay = 60.0,
        up_tolerance: Share = 0.1,
        down_tolerance: Share = 0.1,
        cooldown: Delay = 300.0,
    ) -> None:
        self._metric, self._target = metric, target
        self._window, self._pace = window, Stabilizer(cooldown)
        self._up, self._down = up_tolerance, down_tolerance
        self._past: deque[tuple[float, float]] = deque()

    def desired(self, pool: PoolLoad) -> int:
        current = max(pool.num_replicas, 1)
        self._past.append((pool.now, pool.total(self._metric) / current))
        while self._past[0][0] < pool.now - self._window:
            self._past.popleft()
        ratio = sum(value for _, value in self._past) / len(self._past) / self._target
        if 1 - self._down <= ratio <= 1 + self._up:
            return pool.num_replicas
        return self._pace.allow(pool.now, current, math.ceil(current * ratio - 1e-9))
