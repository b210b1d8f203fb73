"""Priority preemption: a waiting request displaces running ones of sufficiently lower priority."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.budget import MOST_NEW_TOKENS, promised, rem_total
from kvsim.engines.sglang.rules.retraction import free_for_recompute
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


#: Most consecutive passes that preempt while no request gets a token. SGLang has no limit: if
#: preempted requests go first again, and the preempting one is not admitted, the preemptions never
#: end (D100).
MOST_FRUITLESS = 32


def preempt_for(state: Replica, k: int) -> bool:
    """Preempt until a waiting request has room; if impossible, preempt none and return False."""
    scheduler, request, mine = (
        state.engines.sglang,
        state.requests[k],
        state.engines.sglang.progress[k],
    )
    if scheduler.num_fruitless >= MOST_FRUITLESS:
        return False
    asked = mine.tried_known - mine.tried_prefix + min(mine.max_new, MOST_NEW_TOKENS)
    needed = asked - rem_total(state)
    num_victims, victim = 0, least_urgent(state, NONE)
    while victim != NONE:
        other = state.requests[victim]
        if (request.priority - other.priority) * -scheduler.sign <= scheduler.threshold:
            break
        state.engines.sglang.progress[victim].is_victim = True
        num_victims += 1
        needed -= promised(state, victim)
        if needed <= 0:
            break
        victim = least_urgent(state, victim)
    preempts = num_victims > 0 and needed <= 0
    if preempts:
        preempt_victims(state)
    for place in range(scheduler.num_running):
        scheduler.progress[scheduler.running[place]].is_victim = False
    return preempts


def least_urgent(state: Replica, after: int) -> int:
    """Return the next victim after ``after`` (NONE: the first), or NONE if none is left.

    The least urgent request goes first; on a tie, the one that entered the queue last.
    """
    found = NONE
    for place in range(state.engines.sglang.num_running):
        k = state.engines.sglang.running[place]
        if state.requests[k].status == FINISHED:
            continue
        if (after == NONE or gives_way_before(state, after, k)) and (
            found == NONE or gives_way_before(state, k, found)
        ):
            found = k
    return found


def gives_way_before(state: Replica, a: int, b: int) -> bool:
    """Return True if a running request is preempted before another."""
    sign = -state.engines.sglang.sign
    one, other = state.requests[a].priority * sign, state.requests[b].priority * sign
    if one != other:
        return one < other
    return state.engines.sglang.progress[a].number > state.engines.sglang.progress[b].number


def preempt_victims(state: Replica) -> None:
    """Remove the marked requests from the running batch; they join the queue after the pass."""
    scheduler, kept, num_gone = state.engines.sglang, 0, 0
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        mine = scheduler.progress[k]
        if mine.is_victim:
            mine.is_victim = False
            scheduler.budget -= promised(state, k)
            num_gone += 1
            free_for_recompute(state, k, scheduler.num_running - num_gone)
            scheduler.preempted[scheduler.num_preempted] = k
            scheduler.num_preempted += 1
        else:
            scheduler.running[kept] = k
            kept += 1
    scheduler.num_running = kept
