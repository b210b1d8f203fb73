"""Draining of LoRA adapters: a running adapter admits no long requests while another one waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.adapters import place_in, time_of_loads
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: A draining adapter admits requests with outputs up to this times its longest remaining output.
DRAIN_SLACK = 1.2


def begin_drains(state: Replica) -> None:
    """End drains of adapters that no longer run; start one for each adapter that waits too long."""
    scheduler, adapters = state.engines.sglang, state.engines.sglang.adapters
    kept = 0
    for place in range(adapters.num_draining):
        if longest_left(state, adapters.draining[place]) != NONE:
            adapters.draining[kept] = adapters.draining[place]
            adapters.drains_for[kept] = adapters.drains_for[place]
            kept += 1
    adapters.num_draining = kept
    adapters.num_wanted = 0
    for place in range(scheduler.num_running):
        one = state.requests[scheduler.running[place]].lora
        if place_in(adapters.wanted, adapters.num_wanted, one) == NONE:
            adapters.wanted[adapters.num_wanted] = one
            adapters.num_wanted += 1
    if adapters.num_wanted < adapters.most:
        return
    starved = longest_waiting(state)
    while starved != NONE:
        victim = adapter_to_drain(state)
        if victim == NONE:
            return
        adapters.draining[adapters.num_draining] = victim
        adapters.drains_for[adapters.num_draining] = starved
        adapters.num_draining += 1
        starved = longest_waiting(state)


def longest_waiting(state: Replica) -> int:
    """Return the adapter that waits longest over the limit with no drain begun for it, or NONE."""
    adapters, k = state.engines.sglang.adapters, state.waiting.head
    since, found = time_of_loads(state) - adapters.drain_wait, NONE
    while k != NONE:
        adapter, entered = state.requests[k].lora, state.engines.sglang.progress[k].waits_since
        is_served = place_in(adapters.drains_for, adapters.num_draining, adapter) != NONE
        if entered < since and adapter > 0 and not is_served:
            since = entered
            found = adapter
        k = state.requests[k].next
    return found


def adapter_to_drain(state: Replica) -> int:
    """Return the running adapter that does not drain and has the least output left; or NONE."""
    adapters, found, least = state.engines.sglang.adapters, NONE, 0
    for place in range(adapters.num_wanted):
        adapter = adapters.wanted[place]
        left = longest_left(state, adapter)
        drains = place_in(adapters.draining, adapters.num_draining, adapter) != NONE
        if not drains and (found == NONE or left < least):
            found = adapter
            least = left
    return found


def longest_left(state: Replica, adapter: int) -> int:
    """Return the largest number of tokens left to a running request of an adapter, or NONE."""
    scheduler, longest = state.engines.sglang, NONE
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        request = state.requests[k]
        if request.lora == adapter:
            left = scheduler.progress[k].max_new - request.num_output_tokens
            longest = max(longest, left)
    return longest


def outlasts_drain(state: Replica, k: int) -> bool:
    """Return True if a request's adapter drains, and the request would run too long for that."""
    adapters, adapter = state.engines.sglang.adapters, state.requests[k].lora
    if place_in(adapters.draining, adapters.num_draining, adapter) == NONE:
        return False
    left = DRAIN_SLACK * longest_left(state, adapter)
    return state.engines.sglang.progress[k].max_new > left
