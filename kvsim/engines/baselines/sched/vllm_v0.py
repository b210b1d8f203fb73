"""The scheduler of vLLM before V1: steps of whole prompts before decodes; swap or recompute.

The rules are in :mod:`kvsim.engines.baselines.rules.vllm_v0`.
"""

from __future__ import annotations

from kvsim.engines.policies import VLLM_V0
from kvsim.sched.scheduler import SCHEDULERS, Scheduler


@SCHEDULERS.register("vllm-v0")
class VllmV0Scheduler(Scheduler):
    """Schedules prompts first, else decodes (preempting the least urgent) and swap-ins."""

    rules_of = VLLM_V0
    looks_up_prefix = False
    whole_prompts = True
    watermark = 0.01
    can_swap = True
    takes_samples = True
