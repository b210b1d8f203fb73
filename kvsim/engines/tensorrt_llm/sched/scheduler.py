"""TensorRT-LLM's scheduler: a capacity policy, and a token budget that decodes take first."""

from __future__ import annotations

from kvsim.engines.policies import TENSORRT_LLM
from kvsim.sched.scheduler import SCHEDULERS, Scheduler


@SCHEDULERS.register("tensorrt-llm")
class TensorrtLlmScheduler(Scheduler):
    """Schedules decodes first, then prompts in chunks of whole blocks, by a capacity policy.

    ``capacity_scheduler_policy`` guaranteed_no_evict admits a request only if it and all running
    ones can be completed; max_utilization admits a request if its next chunk fits, and pauses
    the request admitted last if decodes find no block. The rules are in
    :mod:`kvsim.engines.tensorrt_llm.rules.capacity`; the loop is vLLM's.
    """

    rules_of = TENSORRT_LLM
    needs_allocator = "paged"
    evidence = "by its documented policy, not recorded"
    supports_async = True
