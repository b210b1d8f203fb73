"""Kubernetes' horizontal pod autoscaler."""

from __future__ import annotations

import math
from collections import deque

from kvsim.fleet.parameters import Delay, Limit, Share  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Metric, PoolLoad

#: Seconds in which the number of replicas may double or grow by GROWTH, whichever is more.
GROWTH_PERIOD = 15.0
GROWTH = 4


@AUTOSCALERS.register("hpa")
class HorizontalPodAutoscaler(Autoscaler):
    """Set ``ceil(current * metric / target)`` replicas; the metric is the mean of all replicas.

    Within the tolerance nothing changes. In 15 s, the number of replicas can double or grow by
    four, whichever is more. It shrinks to the largest recommendation in the stabilisation window.

    Source: Kubernetes' autoscaling v2. KEDA's usual trigger on vLLM is ``num_requests_waiting``
    with a target of 5.

    Parameters
    ----------
    metric : waiting, running, requests (both) or kv (share of blocks in use)
    target : target value of the metric per replica
    tolerance : share of the target within which nothing changes
    window : stabilisation window before the number falls, seconds
    """

    interval = 15.0

    def __init__(
        self,
        *,
        metric: Metric = "waiting",
        target: Limit = 5.0,
        tolerance: Share = 0.1,
        window: Delay = 300.0,
    ) -> None:
        self._metric = metric
        self._target = target
        self._tolerance = tolerance
        self._window = window
        self._past: deque[tuple[float, int]] = deque()
        self._sizes: deque[tuple[float, int]] = deque()

    def desired(self, pool: PoolLoad) -> int:
        current = pool.num_replicas
        wanted = recommend(current, pool.total(self._metric), self._target, self._tolerance)
        self._sizes.append((pool.now, current))
        while self._sizes[0][0] <= pool.now - GROWTH_PERIOD:  # an entry of this age has expired
            self._sizes.popleft()
        before = min(size for _, size in self._sizes)
        wanted = min(wanted, max(2 * before, before + GROWTH))
        self._past.append((pool.now, wanted))
        while self._past[0][0] < pool.now - self._window:
            self._past.popleft()
        highest = max(wanted for _, wanted in self._past)
        return wanted if wanted >= current else min(highest, current)


def recommend(current: int, total: float, target: float, tolerance: float) -> int:
    """Return the number of replicas that would bring the mean of a metric to its target.

    Examples
    --------
    >>> recommend(50, 50 * 90, 75, 0.1)
    60
    """
    if current == 0:
        return math.ceil(total / target)
    ratio = total / current / target
    if abs(ratio - 1) <= tolerance:
        return current
    return math.ceil(current * ratio - 1e-9)
