"""Idle time of a replica with nothing to schedule until a known time or an arrival."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.rules.recorder import pass_time

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def time_to_resume(state: Replica) -> float:
    """Return the time at which an idle replica may have work: its resume time or an arrival."""
    time = state.resume_time
    if state.trace.seen < state.trace.num_arrivals:
        time = min(time, state.trace.entry_time[state.trace.seen])
    return max(time, state.clock)


def pass_idle_time(state: Replica) -> bool:
    """Advance to the time at which a step may be scheduled; False if it is beyond the horizon."""
    time = time_to_resume(state)
    if time > state.horizon:
        return False
    state.resume_time = -math.inf
    pass_time(state, min(time, state.end_time))
    return True
