"""A user's order of requests: which is admitted first, and which is preempted first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.rules.python import python_rank, python_victim_score

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def ask_rank(state: Replica, k: int) -> None:
    """Give a request the priority that it has now; a value that is not a number comes last."""
    rank = python_rank(state, k)
    state.ranks[k] = math.inf if math.isnan(rank) else rank


def rank_running(state: Replica) -> None:
    """Give the running requests the priorities that they have now."""
    for place in range(state.num_running):
        ask_rank(state, state.running[place])


def own_victim_place(state: Replica) -> int:
    """Return the index in the running list of the request that a user's rule preempts.

    Among equals it is the one admitted last.
    """
    chosen, most = state.num_running - 1, -math.inf
    for place in range(state.num_running):
        score = python_victim_score(state, state.running[place])
        if score >= most:
            chosen = place
            most = score
    return chosen
