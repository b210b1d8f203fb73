"""A user's rules for the order of requests: priorities for admission, and preemption victims."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.python import python_rank, python_victim_score

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.part import Part

#: Numbers of the operations of a user's scheduler.
PRIORITY, VICTIM = 0, 1


def record_wrong(part: Part, operation: int, value: float) -> None:
    """Record the first invalid value that a user's operation returned.

    The run continues, and is refused at its end.
    """
    if part.wrong == NONE:
        part.wrong = operation
        part.returned = value


def update_rank(state: Replica, k: int) -> None:
    """Set a request's priority to the current result of the user's rule."""
    rank = python_rank(state, k)
    if math.isnan(rank):
        record_wrong(state.order, PRIORITY, rank)
        rank = math.inf
    state.ranks[k] = rank


def rank_running(state: Replica) -> None:
    """Set the priorities of the running requests to the current results of the user's rule."""
    for place in range(state.num_running):
        update_rank(state, state.running[place])


def own_victim_place(state: Replica) -> int:
    """Return the index in the running list of the request with the highest preemption score.

    If several requests have this score, it is the last of them.
    """
    chosen, most = state.num_running - 1, -math.inf
    for place in range(state.num_running):
        score = python_victim_score(state, state.running[place])
        if math.isnan(score):
            record_wrong(state.order, VICTIM, score)
        if score >= most:
            chosen = place
            most = score
    return chosen
