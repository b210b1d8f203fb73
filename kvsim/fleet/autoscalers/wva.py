"""llm-d's workload variant autoscaler: scales by the distance of the replicas from saturation."""

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Limit, Share  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Load, PoolLoad

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds between two readings of the metrics (a usual Prometheus setting); seconds of the window
#: over which peaks are taken.
LOOK_INTERVAL, PEAK = 15.0, 60.0


@AUTOSCALERS.register("wva")
class SaturationAnalyzer(Autoscaler):
    """Add a replica if spare capacity is low; remove one if the load fits into fewer replicas.

    A replica is saturated if, in the last minute, its KV usage reached ``kv`` or its number of
    waiting requests reached ``queue``. The spare capacity is the mean over the other replicas. A
    decision adds or removes one replica.

    Source: llm-d-workload-variant-autoscaler at 14bed5d0, docs/saturation-analyzer.md.

    Parameters
    ----------
    kv, queue : KV usage and number of waiting requests from which a replica is saturated
    spare_kv, spare_queue : mean spare capacity below which a replica is added
    """

    interval = 60.0
    look_interval = LOOK_INTERVAL

    def __init__(
        self,
        *,
        kv: Share = 0.80,
        queue: Limit = 5.0,
        spare_kv: Share = 0.1,
        spare_queue: Limit = 3.0,
    ) -> None:
        self._kv, self._queue = kv, queue
        self._spare_kv, self._spare_queue = spare_kv, spare_queue
        self._seen: dict[int, deque[tuple[float, Load]]] = defaultdict(deque)

    def look(self, pool: PoolLoad) -> None:
        for one in pool.ready:
            seen = self._seen[one.replica]
            seen.append((pool.now, one))
            while seen[0][0] <= pool.now - PEAK:
                seen.popleft()

    def _peak(self, one: Load) -> Load:
        """Return a replica's load with the peaks of the last minute."""
        loads = [load for _, load in self._seen[one.replica]] or [one]
        return one._replace(
            kv_usage=max(load.kv_usage for load in loads),
            num_waiting=max(load.num_waiting for load in loads),
        )

    def desired(self, pool: PoolLoad) -> int:
        number, ready = pool.num_replicas, map(self._peak, pool.ready)
        free = [r for r in ready if r.kv_usage < self._kv and r.num_waiting < self._queue]
        if pool.num_unplaced or not free or self._is_short(*self.spare(free)):
            return number + (pool.num_starting == 0)
        if len(free) < 2 or pool.num_starting:
            return number
        load_kv = sum(r.kv_usage for r in free) / (len(free) - 1)
        load_queue = sum(r.num_waiting for r in free) / (len(free) - 1)
        fewer = not self._is_short(self._kv - load_kv, self._queue - load_queue)
        return number - fewer

    def spare(self, free: Sequence[Load]) -> tuple[float, float]:
        """Return the mean spare KV usage and spare waiting requests of unsaturated replicas."""
        kv = sum(self._kv - r.kv_usage for r in free) / len(free)
        return kv, sum(self._queue - r.num_waiting for r in free) / len(free)

    def _is_short(self, kv: float, queue: float) -> bool:
        return kv < self._spare_kv or queue < self._spare_queue
