"""The scheduler of vLLM 0.33: chunked prefill under a token budget, recompute preemption."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.sched.scheduler import SCHEDULERS, Scheduler, StepPlan

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager
    from kvsim.sched.scheduler import SchedulerConfig


@SCHEDULERS.register("vllm")
class VllmScheduler(Scheduler):
    """Running requests first, in order, then the waiting queue, within one token budget.

    A running request that finds no block preempts: under FCFS the latest admitted one, under
    priority the least urgent one, possibly itself. A step that preempts admits nobody. The head of
    the waiting queue blocks those behind it.
    """

    supports_async = True

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig) -> None:
        super().__init__(kv, config)
        self._max_active = config.max_num_active_seqs or config.max_num_seqs

    def schedule(self, now: float) -> StepPlan:  # noqa: D102 - see Scheduler
        del now
        plan = StepPlan()
        num_unfinished = len(self.running) + len(self.waiting)
        budget = self.config.max_num_batched_tokens
        threshold = self._long_prefill_threshold(num_unfinished, budget)
        budget = self._schedule_running(plan, budget, threshold)
        if not plan.preempted:
            self._schedule_waiting(plan, budget, threshold)
        return self._commit(plan)

    def _long_prefill_threshold(self, num_unfinished: int, budget: int) -> int:
        """Most tokens of one request in this step, 0 for no limit; a lone request has none."""
        threshold = self.config.long_prefill_token_threshold if num_unfinished > 1 else 0
        if threshold and self.config.long_prefill_token_threshold_adaptive:
            threshold = max(threshold, budget // num_unfinished)
        return threshold

    def _schedule_running(self, plan: StepPlan, budget: int, threshold: int) -> int:
        """Give every running request its next tokens; returns the budget left."""
        running, allocate_slots = self.running, self.kv.allocate_slots
        longest = self.config.max_model_len - 1
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            computed, placeholders = request.num_computed_tokens, request.num_placeholders
            end = request.num_prompt_tokens + request.max_tokens
            if placeholders and computed + 2 - placeholders >= end:
                index += 1  # its last token is in flight already
                continue
            num_tokens = request.num_tokens + placeholders - computed
            if 0 < threshold < num_tokens:
                num_tokens = threshold
            num_tokens = min(num_tokens, budget, longest - computed)
            if num_tokens <= 0:
                index += 1
                continue
            if allocate_slots(request, num_tokens):
                plan.add(request, num_tokens)
                budget -= num_tokens
                index += 1
                continue
            while True:
                self.num_allocation_failures += 1
                position, victim = self._pop_victim()
                budget += plan.drop(victim)
                self._preempt(plan, victim)
                if position < index:
                    index -= 1
                if victim is request:
                    if self.config.policy == "fcfs":
                        return budget
                    break
                if allocate_slots(request, num_tokens):
                    plan.add(request, num_tokens)
                    budget -= num_tokens
                    index += 1
                    break
        return budget

    def _schedule_waiting(self, plan: StepPlan, budget: int, threshold: int) -> None:
        """Admit from the head of the queue while budget, places and memory last."""
        waiting, kv = self.waiting, self.kv
        set_aside = []
        while budget > 0 and len(waiting) and len(self.running) < self._max_active:
            request = waiting.head()
            if request.num_stale_tokens:
                set_aside.append(waiting.pop())
                continue
            hit = kv.lookup(request)
            request.shared_prefix_boundary = hit.shared_prefix_boundary
            num_tokens = request.num_tokens - hit.num_tokens
            if 0 < threshold < num_tokens:
                num_tokens = threshold
            if num_tokens > budget and not self.config.enable_chunked_prefill:
                self._refused = False
                break
            num_tokens = min(num_tokens, budget)
            self._refused = not kv.allocate_slots(request, num_tokens, hit)
            if self._refused:
                self.num_allocation_failures += 1
                break
            self._admit(plan, request, num_tokens, hit)
            budget -= num_tokens
        for request in reversed(set_aside):
            waiting.push_front(request)
