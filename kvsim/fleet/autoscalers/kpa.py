"""Knative's pod autoscaler, as AIBrix implements it."""

from __future__ import annotations

import math
from collections import deque

from kvsim.fleet.parameters import Delay, Limit, Share  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Metric, PoolLoad
from kvsim.fleet.scaling.stabilizer import Stabilizer


@AUTOSCALERS.register("kpa")
class PodAutoscaler(Autoscaler):
    """Set ``ceil(total / target)`` replicas; the total is a mean over a stable or a panic window.

    While the panic window's mean exceeds ``panic_threshold`` times the stable window's mean (a
    panic), the pool does not shrink. A decision at most doubles or halves the number of replicas.
    After each growth, a cool-down must pass before the pool shrinks.

    Source: aibrix at e3e10f9e, podautoscaler/algorithm.

    Parameters
    ----------
    metric : waiting, running, requests (both) or kv
    target : target value of the metric per replica
    stable_window, panic_window : seconds over which the metric is averaged
    panic_threshold : ratio of the panic window's mean to the stable one's that starts a panic
    tolerance : share of the target within which nothing changes
    cooldown : seconds from the last growth until the pool may shrink
    """

    interval = 10.0

    def __init__(
        self,
        *,
        metric: Metric = "requests",
        target: Limit = 50.0,
        stable_window: Delay = 180.0,
        panic_window: Delay = 60.0,
        panic_threshold: Limit = 2.0,
        tolerance: Share = 0.1,
        cooldown: Delay = 300.0,
    ) -> None:
        self._metric, self._target = metric, target
        self._stable, self._panic = stable_window, panic_window
        self._threshold, self._tolerance = panic_threshold, tolerance
        self._pace = Stabilizer(cooldown)
        self._past: deque[tuple[float, float]] = deque()

    def desired(self, pool: PoolLoad) -> int:
        current = max(pool.num_replicas, 1)
        self._past.append((pool.now, pool.total(self._metric)))
        while self._past[0][0] < pool.now - max(self._stable, self._panic):
            self._past.popleft()
        stable, panic = self._mean(pool.now, self._stable), self._mean(pool.now, self._panic)
        panics = stable > 0 and panic / stable > self._threshold
        value = max(stable, panic) if panics else stable
        if abs(value / current / self._target - 1) <= self._tolerance:
            return pool.num_replicas
        wanted = math.ceil(value / self._target - 1e-9)
        return self._pace.allow(pool.now, current, wanted, may_shrink=not panics)

    def _mean(self, now: float, window: float) -> float:
        values = [value for time, value in self._past if time >= now - window]
        return sum(values) / len(values)
