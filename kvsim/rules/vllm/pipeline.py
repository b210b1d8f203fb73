"""Times of steps in the pipeline: each step passes all stages, in the order of the steps.

A stage computes one step at a time, so a short step behind a long one waits at every stage. The
first stage needs the last token of each request that decodes, and this token leaves the last stage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.batch import batch_at

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def start_of(state: Replica, batch: Batch) -> float:
    """Return when the first stage can start a step.

    vLLM's scheduler calls a request again while its token is in flight (asynchronous scheduling);
    the workers start that step only when the token has left the last stage.
    """
    start = max(state.clock, state.stage_free_time)
    if state.limits.num_stages > 1 and state.limits.asynchronous:
        nearest = state.num_batches + 1  # ends do not go back: the last of the steps counts
        for at in range(batch.size):
            behind = batch.entries[at].behind
            if behind > 0:
                nearest = min(nearest, behind)
        if nearest <= state.num_batches:
            start = max(start, batch_at(state, state.num_batches - nearest).end)
    return start


def pass_stages(state: Replica, start: float, time: float) -> float:
    """Pass a step of ``time`` seconds through the stages from ``start`` on; return its end."""
    num_stages = state.limits.num_stages
    if num_stages == 1:
        state.stage_free_time = start + time
        return start + time
    part, end = time / num_stages, start
    for stage in range(num_stages):
        end = max(end, state.stage_free[stage]) + part
        state.stage_free[stage] = end
    state.stage_free_time = state.stage_free[0]
    return end
