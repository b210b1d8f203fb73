"""Iteration-level scheduling with reservation at admission, as in Orca (OSDI 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.sched.scheduler import SCHEDULERS, Scheduler, StepOutput, StepPlan

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager
    from kvsim.sched.scheduler import SchedulerConfig


@SCHEDULERS.register("orca")
class OrcaScheduler(Scheduler):
    """Requests join and leave the batch between steps, first come first served.

    A request joins when its KV-cache manager can reserve all it may need, so nothing is preempted;
    its whole prompt is computed in its first step. There is no token budget: only ``max_num_seqs``
    and memory limit the batch. Over a manager that grows as it goes, a request that cannot grow
    preempts the latest admitted one (by priority, the least urgent one), to be computed again; and
    since memory is full then, nobody is admitted until a request has ended.
    """

    reserves_output = True
    takes_samples = True

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig) -> None:
        super().__init__(kv, config)
        self._is_full = False  # a request could not grow, and none has ended since

    def schedule(self, now: float) -> StepPlan:  # noqa: D102 - see Scheduler
        del now
        plan = StepPlan()
        self._grow_running(plan)
        self._is_full = (self._is_full or bool(plan.preempted)) and bool(self.running)
        if plan.preempted or self._is_full:
            self._refused = not plan.preempted
            return self._commit(plan)
        num_seqs = self.num_running_seqs
        while len(self.waiting):
            request = self.waiting.head()
            num_seqs += request.num_samples
            if num_seqs > self.config.max_num_seqs or request.num_stale_tokens:
                break
            hit = self.kv.lookup(request)
            num_tokens = request.num_tokens - hit.num_tokens
            self._refused = not self.kv.allocate_slots(request, num_tokens, hit)
            if self._refused:
                self.num_allocation_failures += 1
                break
            self._admit(plan, request, num_tokens, hit)
        return self._commit(plan)

    def complete(self, plan: StepPlan, now: float) -> StepOutput:  # noqa: D102
        output = super().complete(plan, now)
        if output.finished:
            self._is_full = False
        return output
