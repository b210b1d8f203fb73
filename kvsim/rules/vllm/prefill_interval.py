"""vLLM's prefill_schedule_interval: only every N-th executed step may schedule prefill."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.waiting_for_kv import num_queued

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def is_prefill_held(state: Replica) -> bool:
    """Return True if a request decodes, and the last step with prefill is too recent for more."""
    interval = state.limits.prefill_schedule_interval
    if interval <= 1 or state.is_prefill_full:
        return False
    if state.num_executed + 1 - state.last_prefill >= interval:
        return False
    for place in range(state.num_running):
        if state.requests[state.running[place]].is_chunk == 0:
            return True
    return False


def count_prefill_interval(state: Replica, batch: Batch, held: bool) -> None:
    """Count the step just scheduled, and record whether requests still wait after it."""
    if state.num_preempted == 0 and not held:
        state.is_prefill_full = num_queued(state) > state.num_deferred
    if batch.size > 0:
        state.num_executed += 1
        if state.carries_prefill:
            state.last_prefill = state.num_executed
