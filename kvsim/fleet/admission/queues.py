"""Admission before the routers: requests wait while the fleet is saturated, or are shed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.admission.flow_control import Waiting
from kvsim.fleet.admission.priority_bands import PriorityBands
from kvsim.fleet.feature import Feature
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.fleet.admission.flow_control import FlowControl
    from kvsim.fleet.feature import Host
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World
    from kvsim.trace import Trace

#: Seed word that separates these random numbers from those of workloads, routers and failures.
SHEDDING = 0x73686564


class Admission(Feature):
    """Admits, queues or rejects requests.

    Saturation changes when metrics are read. After each reading, queued requests are released until
    saturation reaches 1.

    Parameters
    ----------
    world : the SimPy environment
    pool : the pool of the replicas that are scraped
    trace : the requests
    control : the policy
    host : the fleet
    table : the requests table of the run
    seed : the seed of the run
    end_time : no request is released from this time on, seconds
    """

    def __init__(
        self,
        world: World,
        pool: Pool,
        trace: Trace,
        control: FlowControl,
        host: Host,
        table: NDArray[Any],
        *,
        seed: int,
        end_time: float,
    ) -> None:
        self._world, self._pool, self._trace, self._control = world, pool, trace, control
        self._host, self._table = host, table
        self._gateways = pool.gateways
        self._scraper = pool.gateways.scraper(control.interval, world.now)
        self._rng = np.random.default_rng([seed, SHEDDING])
        self._end_time = end_time
        self._line = PriorityBands()
        self._since: dict[int, float] = {}
        self._waits: list[float] = []
        self._awaited = False
        self._shed: list[int] = []
        self._too_many: list[int] = []
        self.peak_waiting = 0

    @property
    def num_held_back(self) -> int:  # type: ignore[override]
        return len(self._line)

    def on_send(self, row: int) -> bool:
        now, priority = self._world.now, int(self._trace.priority[row])
        saturation = self._saturation()
        probability = self._control.shedding(priority, saturation)
        if probability > 0 and self._rng.random() < probability:
            self._shed.append(row)
            self._host.turn_away(row)
        elif not self._line and saturation < 1:
            self._waits.append(0.0)
            self._host.place(row, now)
        elif len(self._line) >= self._control.most_waiting:
            self._too_many.append(row)
            self._host.turn_away(row)
        else:
            by_tenant = self._control.fairness == "round-robin"
            tenant = int(self._trace.tenant[row]) if by_tenant else 0
            self._line.push(row, priority, tenant, self._control.rank(self._waiting(row, now)))
            self._since[row] = now
            self.peak_waiting = max(self.peak_waiting, len(self._line))
            self._await()
        return True

    def _saturation(self) -> float:
        """Return the saturation of the replicas that may be chosen, as last scraped."""
        self._scraper.scrape_idle_replicas(self._world.now)
        members = self._pool.choosable()
        full = self._control.saturation([self._scraper.values[m.place] for m in members])
        if not self._control.watches_prefills:
            return full
        tokens = self._gateways.num_prefill_tokens([m.place for m in members])
        most = self._pool.setup.scheduler_config.max_num_batched_tokens
        return max(full, self._control.prefill_saturation(tokens, most))

    def _waiting(self, row: int, now: float) -> Waiting:
        """Return the properties of a request by which the flow control ranks it."""
        prompt = int(self._trace.num_prompt_tokens[row])
        if not self._control.watches_prefills:
            return Waiting(now, prompt)
        return Waiting(now, prompt - min(self._gateways.num_known_tokens(row, now), prompt))

    def _await(self) -> None:
        """Schedule a release of requests at the next scrape."""
        time = self._scraper.next_time(self._world.now)
        if not self._awaited and time < self._end_time:
            self._awaited = True
            self._world.call_at(time, self._let_through)

    def _let_through(self) -> None:
        self._awaited = False
        now = self._world.now
        while self._line and self._saturation() < 1:
            row = self._line.pop()
            self._waits.append(now - self._since.pop(row))
            self._host.place(row, now)
        if self._line:
            self._await()

    def describe(self) -> dict[str, Any]:
        """Return the numbers of requests that waited and that were rejected."""
        waits, sent = np.array(self._waits), self._table["finish_reason"] != FinishReason.UNSENT
        described = {
            "num_held_back": int((waits > 0).sum()) + len(self._line),
            "num_shed": int(sent[self._shed].sum()),
            "num_too_many": int(sent[self._too_many].sum()),
            "peak_waiting": self.peak_waiting,
            "mean_wait_ms": 1e3 * float(waits.mean()) if len(waits) else None,
            "p99_wait_ms": 1e3 * float(np.percentile(waits, 99)) if len(waits) else None,
        }
        return {"flow_control": described}
