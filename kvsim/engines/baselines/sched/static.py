"""Request-level batching: a batch runs until its last request ends (FasterTransformer, Triton)."""

from __future__ import annotations

from kvsim.engines.policies import STATIC
from kvsim.sched.scheduler import SCHEDULERS, Scheduler


@SCHEDULERS.register("static")
class StaticScheduler(Scheduler):
    """Fill an empty batch from the queue, then admit no request until the whole batch has ended.

    Requests get their answer when they end, but their slots are held until the batch ends. All
    prompts of a batch are computed in its first step; ended requests cost no compute. A
    request that cannot grow preempts the last request of its batch, which joins the next batch.
    The rules are in :mod:`kvsim.engines.baselines.rules.static`.
    """

    rules_of = STATIC
    reserves_output = True
    takes_samples = True
    looks_up_prefix = False
