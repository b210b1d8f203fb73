"""Times of steps in pipeline parallelism: every step passes all stages, in schedule order.

A stage computes one step at a time, so a short step waits at every stage for a long step before it.
The first stage needs the last token of each decode, which the last stage samples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.batch import batch_at

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def start_of(state: Replica, batch: Batch) -> float:
    """Return the time at which the first stage can start a step.

    Under asynchronous scheduling, vLLM schedules a request again while its token is in flight. The
    workers start that step only when the last stage has sampled the token.
    """
    start = max(state.clock, state.stage_free_time)
    if state.limits.num_stages > 1 and state.limits.asynchronous:
        nearest = state.num_batches + 1  # step ends are in order, so only the latest step counts
        for at in range(batch.size):
            behind = batch.entries[at].behind
            if behind > 0:
                nearest = min(nearest, behind)
        if nearest <= state.num_batches:
            start = max(start, batch_at(state, state.num_batches - nearest).end)
    return start


def pass_stages(state: Replica, start: float, time: float) -> float:
    """Run a step of ``time`` seconds through all stages from ``start`` on; return its end."""
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
