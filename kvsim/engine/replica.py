"""The Python backend: one replica, step by step, on the plain-Python scheduler and memory."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.cost.model import StepCost
from kvsim.engine.recorder import Recorder
from kvsim.request import Request
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.setup import Setup
    from kvsim.results.totals import Totals
    from kvsim.sched.scheduler import StepPlan
    from kvsim.trace import Trace

MEMORY_MAP_BINS = 1024
NO_COST = StepCost(0.0, 0.0, 0.0)

#: Empty steps in a row after which a scheduler that still has work is considered stuck.
MAX_EMPTY_STEPS = 3


class _Batch(NamedTuple):
    """A scheduled step on its way through the GPU, and when its tokens are there."""

    plan: StepPlan
    end: float


def make_request(trace: Trace, index: int, arrival_time: float, max_model_len: int) -> Request:
    """Build one request of a trace; its output is cut at ``max_model_len``."""
    prompt = int(trace.num_prompt_tokens[index])
    return Request(
        index,
        arrival_time,
        prompt,
        min(int(trace.num_output_tokens[index]), max_model_len - prompt),
        trace.segments_of(index),
        int(trace.output_content_id[index]),
        int(trace.priority[index]),
        int(trace.cache_salt[index]),
        int(trace.num_samples[index]),
    )


class Replica:
    """One replica's engine in plain Python; see :class:`kvsim.engine.backend.Backend`.

    The loop is vLLM's: schedule a step, and take in the oldest step under way when as many are
    under way as may be (one; two with asynchronous scheduling; one more per pipeline stage), or
    when nothing could be scheduled.

    Parameters
    ----------
    index : number of the replica
    setup : what it is made of
    trace : the requests; only submitted ones are served
    requests : the run's requests table, shared by all replicas
    start_time : when the run begins, seconds
    end_time : start no step from then on
    on_end : called after each request's end
    """

    def __init__(
        self,
        index: int,
        setup: Setup,
        trace: Trace,
        requests: NDArray[Any],
        *,
        start_time: float,
        end_time: float = math.inf,
        on_end: Callable[[], object] | None = None,
    ) -> None:
        self.clock = start_time
        self._trace = trace
        self._scheduler = setup.make_scheduler()
        self._scheduler.kv.foresee(
            make_request(trace, i, 0.0, setup.memory.limits.max_model_len)
            for i in range(len(trace))
            if trace.num_prompt_tokens[i] < setup.memory.limits.max_model_len
        )
        self._cost = setup.cost
        self._max_model_len = setup.memory.limits.max_model_len
        self._depth = setup.num_steps_in_flight
        self._num_stages = setup.config.pipeline_parallel_size
        self._end_time = end_time
        self._on_end = on_end
        self._check = setup.config.check_invariants
        self._recorder = Recorder(
            index,
            self._scheduler,
            requests,
            record_steps=setup.config.record_steps,
            memory_map_bins=MEMORY_MAP_BINS * setup.config.record_memory_map,
        )
        self._arrivals: deque[tuple[float, int]] = deque()  # submitted, not yet seen
        self._in_flight: deque[_Batch] = deque()
        self._stage_free_time = start_time  # when the first pipeline stage can start a step
        self._must_complete = False  # the next event is the end of the oldest step
        self._num_outstanding = 0
        self._num_empty = 0  # empty steps in a row
        self._alive: dict[int, Request] = {}  # seen and not ended

    # -- the protocol ------------------------------------------------------------------------

    def submit(  # noqa: D102 - see Backend
        self, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]
    ) -> None:
        self._arrivals.extend(zip(arrival_times.tolist(), request_ids.tolist(), strict=True))
        self._num_outstanding += len(request_ids)

    def num_outstanding(self) -> int:  # noqa: D102
        return self._num_outstanding

    def num_cached_tokens(self, request: IncomingRequest) -> int:  # noqa: D102
        return self._scheduler.kv.lookup(request.as_request()).num_tokens

    def next_event_time(self) -> float:  # noqa: D102
        if self._must_complete:
            return self._in_flight[0].end
        if self._in_flight or (self._scheduler.has_work and self.clock < self._end_time):
            return self.clock
        if not self._arrivals or self.clock >= self._end_time:
            return math.inf
        return max(self._arrivals[0][0], self.clock)

    def advance(self, horizon: float, *, until_finish: bool = False) -> int:  # noqa: D102
        num_ended = 0
        while not (until_finish and num_ended):
            if self._must_complete:
                if self._in_flight[0].end > horizon:
                    break
                num_ended += self._complete()
                continue
            self._see_arrivals()
            if not self._scheduler.has_work:
                if self._in_flight:  # an empty step that was queued behind the last real one
                    self._must_complete = True
                    continue
                if not self._arrivals or self._arrivals[0][0] > horizon:
                    break
                self._pass_time(min(self._arrivals[0][0], self._end_time))
                if self.clock >= self._end_time:
                    break
            elif self.clock >= horizon:
                break
            elif self.clock < self._end_time:
                num_ended += self._schedule()
            elif self._in_flight:
                self._must_complete = True
            else:
                break
        return num_ended

    def settle(self, end_time: float) -> Totals:  # noqa: D102
        self._pass_time(end_time)
        for request in self._alive.values():
            self._recorder.close(request, FinishReason.IN_FLIGHT)
        return self._recorder.finish()

    @property
    def memory(self) -> NDArray[Any]:  # noqa: D102
        return self._recorder.memory

    @property
    def steps(self) -> NDArray[Any]:  # noqa: D102
        return self._recorder.steps

    @property
    def memory_map(self) -> NDArray[np.uint8]:  # noqa: D102
        return self._recorder.memory_map

    # -- events ------------------------------------------------------------------------------

    def _pass_time(self, to: float) -> None:
        if to > self.clock:
            self._recorder.elapse(to - self.clock)
            self.clock = to

    def _see_arrivals(self) -> None:
        """Queue every request that has arrived by now."""
        arrivals, clock = self._arrivals, self.clock
        while arrivals and arrivals[0][0] <= clock:
            arrival_time, index = arrivals.popleft()
            request = make_request(self._trace, index, arrival_time, self._max_model_len)
            self._alive[index] = request
            self._scheduler.add(request)
            self._recorder.waited(clock - arrival_time)

    def _schedule(self) -> int:
        """Decide a step and start it on the GPU; returns requests that turned out hopeless."""
        now, scheduler, in_flight = self.clock, self._scheduler, self._in_flight
        plan = scheduler.schedule(now)
        for request, hit, _ in plan.admitted:
            if math.isnan(request.first_scheduled_time):
                request.first_scheduled_time = now
                request.num_cached_tokens = hit.num_tokens
        if self._check:
            scheduler.kv.check_integrity()
        if plan.requests:
            cost = self._cost.step(plan)
            start = max(now, self._stage_free_time)
            self._stage_free_time = start + cost.time / self._num_stages
            last_end = in_flight[-1].end if in_flight else now
            in_flight.append(_Batch(plan, max(start + cost.time, last_end)))
            self._recorder.step(plan, now, start, cost)
            self._num_empty = 0
        else:
            self._recorder.step(plan, now, now, NO_COST)
            if not any(batch.plan.requests for batch in in_flight):
                return self._stand_still(plan)
            in_flight.append(_Batch(plan, in_flight[-1].end))
        self._must_complete = len(in_flight) >= self._depth or not plan.requests
        return 0

    def _complete(self) -> int:
        """Take in the tokens of the oldest step; returns how many requests have ended."""
        plan, end = self._in_flight.popleft()
        self._pass_time(end)
        self._must_complete = False
        output = self._scheduler.complete(plan, end)
        self._recorder.tokens(output.sampled, end)
        for request in output.finished:
            request.finish_time = end
            self._end(request, FinishReason.FINISHED)
        if self._check:
            self._scheduler.kv.check_integrity()
        return len(output.finished)

    def _end(self, request: Request, reason: FinishReason) -> None:
        del self._alive[request.request_id]
        self._recorder.close(request, reason)
        self._num_outstanding -= 1
        if self._on_end is not None:
            self._on_end()

    def _stand_still(self, plan: StepPlan) -> int:
        """Deal with an empty step behind which nothing is under way.

        A request that had to preempt itself comes back in the next step. A head that not even an
        idle replica admits never will be, so it is rejected. Anything else is a scheduler's bug.
        """
        scheduler = self._scheduler
        self._num_empty += 1
        if not plan.preempted and not scheduler.running and len(scheduler.waiting):
            self._end(scheduler.reject_head(), FinishReason.REJECTED)
            return 1
        if self._num_empty >= MAX_EMPTY_STEPS:
            raise RuntimeError(
                f"invariant 7: {type(scheduler).__name__} has {len(scheduler.running)} running "
                f"requests at {self.clock} s but schedules none of them"
            )
        return 0
