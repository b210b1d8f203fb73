"""A user's order of requests: which is admitted first, and which is preempted first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.python import python_rank, python_victim_score

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.part import Part

#: Operations of a user's scheduler, by number.
PRIORITY, VICTIM = 0, 1


def note_wrong(part: Part, operation: int, value: float) -> None:
    """Note what an operation of a user's returned and may not: the run goes on, and is refused."""
    if part.wrong == NONE:
        part.wrong = operation
        part.returned = value


def ask_rank(state: Replica, k: int) -> None:
    """Give a request the priority that it has now."""
    rank = python_rank(state, k)
    if math.isnan(rank):
        note_wrong(state.order, PRIORITY, rank)
        rank = math.inf
    state.ranks[k] = rank


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
        if math.isnan(score):
            note_wrong(state.order, VICTIM, score)
        if score >= most:
            chosen = place
            most = score
    return chosen
