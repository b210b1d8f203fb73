"""Writes down what a replica does: integrals, samples, steps, token gaps, finished requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.kv.usage import HELD, Cause
from kvsim.results.tables import MAX_MEMORY_SAMPLES, MEMORY, STEPS, FinishReason
from kvsim.results.totals import Totals, gap_bin

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.cost.model import StepCost
    from kvsim.kv.manager import KVCacheManager
    from kvsim.request import Request
    from kvsim.sched.scheduler import Scheduler, StepPlan


class Recorder:
    """The records of one replica.

    Parameters
    ----------
    requests : the run's requests table; finished and rejected ones are written into it
    record_steps : keep a row per step
    memory_map_bins : address bins per memory sample, 0 for no map
    """

    def __init__(
        self,
        replica: int,
        scheduler: Scheduler,
        requests: NDArray[Any],
        *,
        record_steps: bool = False,
        memory_map_bins: int = 0,
    ) -> None:
        self.totals = Totals()
        self._replica = replica
        self._scheduler = scheduler
        self._kv: KVCacheManager = scheduler.kv
        self._requests = requests
        self._record_steps = record_steps
        self._bins = memory_map_bins
        self._steps: list[tuple[Any, ...]] = []
        self._memory: list[tuple[Any, ...]] = []
        self._map: list[NDArray[np.uint8]] = []
        self._stride = 1  # every stride-th step is sampled, a power of two
        self._last_token_time = math.nan  # of the replica

    # -- time ---------------------------------------------------------------------------------

    def elapse(self, seconds: float) -> None:
        """Add a stretch of time in which nothing changed to the integrals."""
        scheduler, totals, usage = self._scheduler, self.totals, self._kv.usage
        num_running = len(scheduler.running)
        totals.unallocated_seconds += usage.unallocated * seconds
        totals.cached_seconds += usage.cached * seconds
        totals.running_seconds += num_running * seconds
        totals.waiting_seconds += scheduler.num_waiting * seconds
        if scheduler.head_refused:
            usage = usage.refused()
            totals.refused_seconds += seconds
            totals.running_while_refused_seconds += num_running * seconds
        for cause, num_bytes in zip(HELD, usage.held, strict=True):
            totals.held_seconds[cause] += num_bytes * seconds
        heap = self._kv.heap_bytes
        if heap is not None:
            totals.heap_active_seconds += heap[0] * seconds
            totals.heap_reserved_seconds += heap[1] * seconds
        kv_usage = self._kv.kv_usage
        totals.usage_seconds += kv_usage * seconds
        totals.peak_usage = max(totals.peak_usage, kv_usage)
        totals.peak_running = max(totals.peak_running, num_running)

    def waited(self, seconds: float) -> None:
        """Count the time a request had waited before the scheduler first saw it."""
        self.totals.waiting_seconds += seconds

    # -- steps --------------------------------------------------------------------------------

    def step(self, plan: StepPlan, now: float, start: float, cost: StepCost) -> None:
        """Note a scheduled step; ``now`` is when it was decided, ``start`` when it runs."""
        if self._record_steps:
            tokens, running = sum(plan.num_tokens), len(self._scheduler.running)
            self._steps.append(
                (self._replica, start, *cost[:1], tokens, running, len(plan.preempted), *cost[1:])
            )
        totals, moved = self.totals, plan.transfers
        totals.fetched_bytes += moved.fetched
        totals.stored_bytes += moved.stored
        totals.paged_in_bytes += moved.paged_in
        totals.paged_out_bytes += moved.paged_out
        if totals.num_steps % self._stride == 0:
            self._sample(now)
        totals.num_steps += 1

    def _sample(self, now: float) -> None:
        if len(self._memory) == MAX_MEMORY_SAMPLES:
            del self._memory[1::2]
            del self._map[1::2]
            self._stride *= 2
            if self.totals.num_steps % self._stride:
                return
        scheduler, kv = self._scheduler, self._kv
        refused = scheduler.head_refused
        self._memory.append(
            (
                now,
                self._replica,
                len(scheduler.running),
                scheduler.num_waiting,
                kv.kv_usage,
                *(kv.usage.refused() if refused else kv.usage),
            )
        )
        if self._bins:
            causes = kv.memory_map(self._bins)
            if refused:
                causes[causes == Cause.FREE] = Cause.EXTERNAL
            self._map.append(causes)

    # -- requests -----------------------------------------------------------------------------

    def tokens(self, sampled: list[Request], now: float) -> None:
        """Stamp one token of each request and bin the gap since its last one."""
        before = self._last_token_time
        num_regular = 0  # requests that also got a token when the replica last gave any
        for request in sampled:
            last = request.last_token_time
            if last == before:
                num_regular += 1
            elif math.isnan(last):
                request.first_token_time = now
            else:
                self._gap(now - last, 1)
            request.last_token_time = now
        if num_regular:
            self._gap(now - before, num_regular)
        if sampled:
            self._last_token_time = now

    def _gap(self, seconds: float, num_tokens: int) -> None:
        gaps, key = self.totals.token_gaps, gap_bin(seconds)
        gaps[key] = gaps.get(key, 0) + num_tokens

    def close(self, request: Request, reason: FinishReason) -> None:
        """Write the row of a request that will not change any more."""
        self._requests[request.request_id] = (
            request.request_id,
            self._replica,
            request.arrival_time,
            request.first_scheduled_time,
            request.first_token_time,
            request.finish_time,
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.num_cached_tokens,
            request.num_preemptions,
            reason,
        )

    # -- results ------------------------------------------------------------------------------

    def finish(self) -> Totals:
        """Complete the totals with the scheduler's counts."""
        totals, scheduler = self.totals, self._scheduler
        totals.num_preemptions = scheduler.num_preemptions
        totals.num_recomputed_tokens = scheduler.num_recomputed_tokens
        totals.num_allocation_failures = scheduler.num_allocation_failures
        return totals

    @property
    def memory(self) -> NDArray[Any]:
        """The memory table of this replica."""
        return np.array(self._memory, dtype=MEMORY)

    @property
    def steps(self) -> NDArray[Any]:
        """The steps table of this replica, empty unless asked for."""
        return np.array(self._steps, dtype=STEPS)

    @property
    def memory_map(self) -> NDArray[np.uint8]:
        """Main cause per sample and address bin."""
        return np.array(self._map, dtype=np.uint8).reshape(len(self._map), self._bins)
