"""A replica with nothing to schedule lets time pass: until a time that it knows, or an arrival."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.rules.recorder import pass_time

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def time_to_resume(state: Replica) -> float:
    """Return when a replica that has nothing to schedule may have: at a time, or an arrival."""
    time = state.resume_time
    if state.trace.seen < state.trace.num_arrivals:
        time = min(time, state.trace.entry_time[state.trace.seen])
    return max(time, state.clock)


def pass_idle_time(state: Replica) -> bool:
    """Let time pass until something may be scheduled; False if that is beyond the horizon."""
    time = time_to_resume(state)
    if time > state.horizon:
        return False
    state.resume_time = -math.inf
    pass_time(state, min(time, state.end_time))
    return True
