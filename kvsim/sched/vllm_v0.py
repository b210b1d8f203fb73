"""The scheduler of vLLM before V1: prompts first, whole, in steps of their own; swap or recompute.

The rules are those of vLLM 0.1 to 0.8's V0 engine without chunked prefill (`core/scheduler.py`):
a step computes either prompts or one token of every running request. A request that finds no
free block preempts the latest arrived one, which is computed again later or, if asked for, waits in
host memory. While any request is swapped out, no prompt is admitted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from kvsim.kv.manager import NO_HIT
from kvsim.request import Request, Status
from kvsim.sched.scheduler import SCHEDULERS, Scheduler, StepPlan

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager
    from kvsim.sched.scheduler import SchedulerConfig


def _urgency(request: Request) -> tuple[int, float, int]:
    return request.priority, request.arrival_time, request.request_id


@SCHEDULERS.register("vllm-v0")
class VllmV0Scheduler(Scheduler):
    """Prompts first; then decodes, preempting from the back; then whoever can be swapped in."""

    looks_up_prefix = False
    whole_prompts = True
    watermark = 0.01
    can_swap = True
    takes_samples = True

    def __init__(self, kv: KVCacheManager, config: SchedulerConfig) -> None:
        super().__init__(kv, config)
        self.swapped: deque[Request] = deque()

    @property
    def has_work(self) -> bool:  # noqa: D102 - see Scheduler
        return super().has_work or bool(self.swapped)

    @property
    def num_waiting(self) -> int:  # noqa: D102
        return len(self.waiting) + len(self.swapped)

    def schedule(self, now: float) -> StepPlan:  # noqa: D102
        del now
        plan = StepPlan()
        if not self.swapped:
            self._schedule_prompts(plan)
        if not plan.requests:
            self._schedule_decodes(plan)
            if not plan.preempted:
                self._swap_in(plan)
        return self._commit(plan)

    def _schedule_prompts(self, plan: StepPlan) -> None:
        budget, num_seqs = self.config.max_num_batched_tokens, self.num_running_seqs
        while len(self.waiting):
            request = self.waiting.head()
            num_seqs += request.num_samples
            if num_seqs > self.config.max_num_seqs:
                break
            if request.num_tokens > budget:
                self._refused = False
                break
            self._refused = not self.kv.allocate_slots(request, request.num_tokens)
            if self._refused:
                self.num_allocation_failures += 1
                break
            self._admit(plan, request, request.num_tokens, NO_HIT)
            budget -= request.num_tokens

    def _schedule_decodes(self, plan: StepPlan) -> None:
        candidates = deque(sorted(self.running, key=_urgency))
        self.running = []
        while candidates:
            request = candidates.popleft()
            while not self._append_slot(request):
                self.num_allocation_failures += 1
                victim = candidates.pop() if candidates else request
                self._preempt(plan, victim)
                if victim is request:
                    break
            else:
                plan.add(request, request.num_tokens - request.num_computed_tokens)
                self.running.append(request)

    def _append_slot(self, request: Request) -> bool:
        """Take the next token's slot; a block per sequence must be free even if none is needed."""
        if self.kv.block_ids(request) and self.kv.num_free < request.num_samples:
            return False
        return self.kv.allocate_slots(request, request.num_tokens - request.num_computed_tokens)

    def _preempt(self, plan: StepPlan, victim: Request) -> None:
        self.num_preemptions += 1
        victim.num_preemptions += 1
        plan.preempted.append(victim)
        self._refused = False  # the new head has not been tried
        # Several sequences cannot be computed again as one prompt: V0 always swaps them.
        swaps = self.config.preemption_mode == "swap" or victim.num_samples > 1
        swapped_bytes = self.kv.swap_out(victim) if swaps else 0
        if swapped_bytes:
            plan.swapped_bytes += swapped_bytes
            victim.status = Status.SWAPPED
            self.swapped.append(victim)
            return
        self.kv.free(victim)
        victim.status = Status.PREEMPTED
        victim.max_computed_tokens = max(victim.max_computed_tokens, victim.num_computed_tokens)
        victim.num_computed_tokens = 0
        self.waiting.push_front(victim)

    def _swap_in(self, plan: StepPlan) -> None:
        self.swapped = deque(sorted(self.swapped, key=_urgency))
        num_seqs = self.num_running_seqs
        while self.swapped:
            request = self.swapped[0]
            num_seqs += request.num_samples
            if num_seqs > self.config.max_num_seqs:
                break
            swapped_bytes = self.kv.swap_in(request)
            if not swapped_bytes:
                break
            self.swapped.popleft()
            plan.swapped_bytes += swapped_bytes
            request.status = Status.RUNNING
            self.running.append(request)
            num_tokens = request.num_tokens - request.num_computed_tokens
            if self.kv.allocate_slots(request, num_tokens):
                plan.add(request, num_tokens)
