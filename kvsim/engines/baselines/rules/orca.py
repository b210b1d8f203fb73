"""Iteration-level scheduling with reservation at admission, as in Orca (OSDI 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.batch import admit, grow_running, num_running_seqs
from kvsim.rules.kv import admit_slots, look_up
from kvsim.rules.queue import head_of

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def schedule_orca(state: Replica, batch: Batch) -> None:
    """Schedule a step: running requests first, then waiting ones that fit, first come first served.

    There is no token budget: only ``max_num_seqs`` and memory limit the batch. A request that
    cannot grow preempts another; memory is then full, so none is admitted until one has ended.
    """
    grow_running(state, batch)
    preempted = state.num_preempted > 0
    state.is_full = (state.is_full or preempted) and state.num_running > 0
    if preempted or state.is_full:
        state.refused = not preempted
        return
    num_seqs = num_running_seqs(state)
    while state.waiting.length > 0:
        k = head_of(state)
        request = state.requests[k]
        num_seqs += request.num_samples
        if num_seqs > state.limits.max_num_seqs or request.num_stale_tokens > 0:
            break
        hit = look_up(state.kv, request)
        num_tokens = request.num_tokens - hit
        state.refused = not admit_slots(state.kv, request, num_tokens, hit)
        if state.refused:
            state.head_lookup_failed = True
            state.totals.num_allocation_failures += 1
            break
        admit(state, batch, k, num_tokens, hit)
