"""Iteration-level scheduling with reservation at admission, as in Orca (OSDI 2022)."""

from __future__ import annotations

from kvsim.engines.policies import ORCA
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
