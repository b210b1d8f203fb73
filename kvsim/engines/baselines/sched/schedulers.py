"""Schedulers of the baselines: Orca (OSDI 2022), request-level batching, vLLM before V1."""

from __future__ import annotations

from kvsim.engines.policies import ORCA, STATIC, VLLM_V0
from kvsim.sched.scheduler import SCHEDULERS, Scheduler


@SCHEDULERS.register("orca")
class OrcaScheduler(Scheduler):
    """Scheduler with iteration-level batching, first come first served.

    A request joins when its KV-cache manager can reserve all the memory it may need, so no request
    is preempted; its whole prompt is computed in its first step. There is no token budget: only
    ``max_num_seqs`` and memory limit the batch. Under a KV-cache manager that allocates at every
    step, a request that cannot grow preempts the last admitted request (by priority, the least
    urgent one), which is recomputed. Memory is then full, so none is admitted until one has ended.
    The rules are in :mod:`kvsim.engines.baselines.rules.orca`.
    """

    rules_of = ORCA
    reserves_output = True
    takes_samples = True


@SCHEDULERS.register("static")
class StaticScheduler(Scheduler):
    """Fill an empty batch from the queue, then admit no request until the whole batch has ended.

    This is request-level batching, as in FasterTransformer and Triton. Requests get their answer
    when they end, but their slots are held until the batch ends. All prompts of a batch are
    computed in its first step; ended requests cost no compute. A request that cannot grow preempts
    the last request of its batch, which joins the next batch.
    The rules are in :mod:`kvsim.engines.baselines.rules.static`.
    """

    rules_of = STATIC
    reserves_output = True
    takes_samples = True
    looks_up_prefix = False


@SCHEDULERS.register("vllm-v0")
class VllmV0Scheduler(Scheduler):
    """Schedules prompts first, else decodes (preempting the least urgent) and swap-ins.

    The rules are in :mod:`kvsim.engines.baselines.rules.vllm_v0`.
    """

    rules_of = VLLM_V0
    looks_up_prefix = False
    whole_prompts = True
    watermark = 0.01
    can_swap = True
    takes_samples = True
