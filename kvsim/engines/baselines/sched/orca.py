"""Iteration-level scheduling with reservation at admission, as in Orca (OSDI 2022)."""

from __future__ import annotations

from kvsim.engines.policies import ORCA
from kvsim.sched.scheduler import SCHEDULERS, Scheduler


@SCHEDULERS.register("orca")
class OrcaScheduler(Scheduler):
    """Scheduler with iteration-level batching, first come first served.

    A request joins when its KV-cache manager can reserve all it may need, so nothing is preempted;
    its whole prompt is computed in its first step. There is no token budget: only ``max_num_seqs``
    and memory limit the batch. Under a KV-cache manager that allocates at every
    step, a request that cannot grow preempts the latest admitted one (by priority, the least urgent
    one), to be computed again; and since memory is full then, no request is admitted until one has
    ended.
    The rules are in :mod:`kvsim.engines.baselines.rules.orca`.
    """

    rules_of = ORCA
    reserves_output = True
    takes_samples = True
