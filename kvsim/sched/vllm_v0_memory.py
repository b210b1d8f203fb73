"""Lays out what the scheduler of vLLM's V0 needs beside the common lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.engine import VLLM_V0

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory
    from kvsim.sched.scheduler import SchedulerConfig


def lay_out_v0(memory: Memory, state: Replica, config: SchedulerConfig) -> None:
    """Lay out the list of swapped requests. Mutates ``state``.

    Running and swapped requests together are never more than ``max_num_seqs``: while any is
    swapped out, no prompt is admitted.
    """
    state.limits.scheduler = VLLM_V0
    state.limits.swaps = config.preemption_mode == "swap"
    state.swapped = memory.ints(config.max_num_seqs)
