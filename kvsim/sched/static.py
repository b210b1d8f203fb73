"""Request-level batching: a batch runs until its last request ends (FasterTransformer, Triton)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.manager import NO_HIT
from kvsim.request import Request, Status
from kvsim.sched.scheduler import SCHEDULERS, Scheduler, StepOutput, StepPlan

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager
    from kvsim.sched.scheduler import SchedulerConfig


@SCHEDULERS.register("static")
class StaticScheduler(Scheduler):
    """Fill an empty batch from the queue, then admit nobody until all of it has ended.

    Requests get their answer when they end, but their slots are held until the batch ends. All
    prompts of a batch are computed in its first step; ended requests cost no compute. A
    request that cannot grow preempts the latest of its batch, which joins the next one.
    """

    reserves_output = True
    takes_samples = True
    looks_up_prefix = False

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig) -> None:
        super().__init__(kv, config)
        self._ended: list[Request] = []

    def schedule(self, now: float) -> StepPlan:  # noqa: D102 - see Scheduler
        del now
        plan = StepPlan()
        if not self.running:
            self._form_batch(plan)
            return self._commit(plan)
        self._grow_running(plan)
        self._end_batch()
        return self._commit(plan)

    def _form_batch(self, plan: StepPlan) -> None:
        num_seqs = 0
        while len(self.waiting):
            request = self.waiting.head()
            num_seqs += request.num_samples
            if num_seqs > self.config.max_num_seqs:
                break
            self._refused = not self.kv.allocate_slots(request, request.num_tokens)
            if self._refused:
                self.num_allocation_failures += 1
                break
            self._admit(plan, request, request.num_tokens, NO_HIT)

    def complete(self, plan: StepPlan, now: float) -> StepOutput:  # noqa: D102
        output = super().complete(plan, now)
        self._end_batch()
        return output

    def _end_batch(self) -> None:
        """Give back what ended requests have held, once nobody runs any more."""
        if not self.running:
            for request in self._ended:
                self.kv.free(request)
            self._ended.clear()

    def _finish(self, request: Request) -> None:
        self.kv.retire(request)
        self._ended.append(request)
        request.status = Status.FINISHED
