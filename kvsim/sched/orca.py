"""Iteration-level scheduling with reservation at admission, as in Orca (OSDI 2022)."""

from __future__ import annotations

from kvsim.sched.scheduler import SCHEDULERS, Scheduler, StepPlan


@SCHEDULERS.register("orca")
class OrcaScheduler(Scheduler):
    """Requests join and leave the batch between steps, first come first served.

    A request joins when its KV-cache manager can reserve all it may need, so nothing is ever
    preempted; its whole prompt is computed in its first step. There is no token budget: only
    ``max_num_seqs`` and memory limit the batch.
    """

    reserves_output = True
    takes_samples = True

    def schedule(self, now: float) -> StepPlan:  # noqa: D102 - see Scheduler
        del now
        plan = StepPlan()
        for request in self.running:
            num_tokens = request.num_tokens - request.num_computed_tokens
            if num_tokens and self.kv.allocate_slots(request, num_tokens):
                plan.add(request, num_tokens)
        num_seqs = self.num_running_seqs
        while len(self.waiting):
            request = self.waiting.head()
            num_seqs += request.num_samples
            if num_seqs > self.config.max_num_seqs:
                break
            hit = self.kv.lookup(request)
            num_tokens = request.num_tokens - hit.num_tokens
            self._refused = not self.kv.allocate_slots(request, num_tokens, hit)
            if self._refused:
                self.num_allocation_failures += 1
                break
            self._admit(plan, request, num_tokens, hit)
        return self._commit(plan)
