"""The scheduler of vLLM 0.33: chunked prefill under a token budget, recompute preemption."""

from __future__ import annotations

from kvsim.engines.policies import VLLM
from kvsim.sched.scheduler import SCHEDULERS, Scheduler


@SCHEDULERS.register("vllm")
class VllmScheduler(Scheduler):
    """Scheduler that serves running requests, then the queue, within one token budget.

    If no block is free for a running request, a request is preempted: under FCFS the latest
    admitted one, under priority the least urgent one, possibly this request. A step that preempts
    admits no request. A refused head blocks the waiting queue. The rules are in
    :mod:`kvsim.rules.vllm.scheduler`.
    """

    rules_of = VLLM
    evidence = "schedules are identical to recorded ones of vLLM 0.33, step by step"
    supports_async = True


class OwnOrderScheduler(VllmScheduler):
    """vLLM's scheduler with the order of a user's :class:`.SchedulerRules`."""
