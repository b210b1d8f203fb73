"""States of requests: the current state, up to two earlier states, and states for the tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.locks import lock_path, unlock_path
from kvsim.engines.sglang.rules.tree.pages import floor_page
from kvsim.engines.sglang.rules.tree.state_slots import allocate_state, free_state
from kvsim.engines.sglang.rules.tree.states import evict_states

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.engines.sglang.records.scheduler import Progress
    from kvsim.engines.sglang.records.states import Holding, States
    from kvsim.records.engine import Replica


def slot_in(held: Holding, place: int) -> int:
    """Return the slot in a place of a request, 0 if it is empty."""
    return held.first if place == 0 else held.second


def fill_place(held: Holding, place: int, slot: int) -> None:
    """Put a slot, or none, into a place of a request."""
    if place == 0:
        held.first = slot
    else:
        held.second = slot


def branch_of(tree: Radix) -> int:
    """Return the tokens that the last match found in the tree, or 0 if the hit is no shorter."""
    walked = floor_page(tree.num_walked, tree.states.step)
    return walked if walked > tree.num_found else 0


def copy_state(state: Replica, k: int) -> None:
    """Take a slot for a copy of the state that a match found."""
    tree, mine = state.kv.radix, state.engines.sglang.progress[k]
    held = state.engines.sglang.held[k]
    held.copied = 0
    if mine.node == 0:
        return
    slot = allocate_state(tree.states)
    if slot == 0:
        edge = lock_path(tree, mine.node)
        evict_states(tree, 1)
        unlock_path(tree, mine.node, edge)
        slot = allocate_state(tree.states)
    if slot != 0:
        held.own = slot
        held.copied = tree.nodes[mine.node].state


def return_copy(state: Replica, k: int) -> None:
    """Free the copied state of a request that was refused."""
    held = state.engines.sglang.held[k]
    if held.own != 0:
        free_state(state.kv.radix.states, held.own)
        held.own = 0


def room_for_states(state: Replica) -> None:
    """Evict states until the admitted requests can get the slots that they lack."""
    scheduler, tree = state.engines.sglang, state.kv.radix
    lacking = -tree.states.num_left
    for place in range(scheduler.num_admitted):
        held = scheduler.held[scheduler.admitted[place]]
        lacking += held.own == 0
        if held.first == 0 and held.second == 0:
            lacking += num_at_first(tree.states)
    if lacking > 0:
        evict_states(tree, lacking)


def num_at_first(states: States) -> int:
    """Return the number of places that a new request fills."""
    return min(states.num_places, 1) if states.is_lazy else states.num_places


def allocate_missing_states(state: Replica) -> None:
    """Give the admitted requests the slots that they lack, in their order."""
    scheduler, states = state.engines.sglang, state.kv.radix.states
    for place in range(scheduler.num_admitted):
        held = scheduler.held[scheduler.admitted[place]]
        if held.own == 0:
            held.own = allocate_state(states)
        if states.num_places > 0 and held.first == 0 and held.second == 0:
            held.first = allocate_state(states)
            held.next = 0
            held.last = 0
            held.depth = 0
            if num_at_first(states) > 1:
                held.second = allocate_state(states)
                held.last = 1


def track_prefill(states: States, mine: Progress, held: Holding) -> None:
    """Record the place into which a prefill writes a state, and the state's depth in tokens.

    The depth is the last whole step of the chunk, or a branch of the tree before it.
    """
    held.is_hit = False
    held.tracked = 0
    num_tokens = mine.end - mine.prefix
    if states.num_places == 0 or num_tokens < states.step:
        return
    depth = mine.prefix + floor_page(num_tokens, states.step)
    held.last = held.next
    if states.num_places > 1 and not states.is_lazy:
        held.next = 1 - held.next
    reach = depth + 1
    if mine.prefix + floor_page(num_tokens, states.chunk) == depth:
        reach = mine.end
    if mine.prefix < mine.branch < reach and (mine.branch - mine.prefix) % states.step == 0:
        depth = mine.branch
    held.depth = depth
    held.tracked = depth


def track_decode(states: States, held: Holding, end: int, is_mixed: bool) -> None:
    """Record whether a decode writes a state, and its place; one in a mixed batch writes none."""
    held.is_given_back = False
    if states.num_places == 0:
        return
    held.is_hit = end % states.interval == 0 and (states.is_lazy or not is_mixed)
    if not held.is_hit:
        return
    other = 1 - held.next
    if states.is_lazy and slot_in(held, other) == 0:
        slot = allocate_state(states)
        if slot == 0:
            held.depth = 0
        elif is_mixed:
            free_state(states, slot)
            held.is_given_back = True
        else:
            fill_place(held, other, slot)
            held.next = other
    held.hit_place = held.next


def record_verification(states: States, held: Holding, end: int, num_tokens: int) -> None:
    """Record the state that a verification writes at the last whole multiple of the interval.

    The verification has accepted ``num_tokens`` tokens; ``end`` is the number of tokens after it.
    If no multiple lies among the new tokens, it writes no state.
    """
    depth = end // states.interval * states.interval
    if states.num_places == 0 or depth <= end - num_tokens:
        return
    held.last = held.hit_place
    held.depth_before = held.depth
    held.depth = depth
    if states.num_places > 1:
        held.next = 1 - held.last


def record_decode(states: States, held: Holding, end: int, is_mixed: bool) -> None:
    """Mark the state that a decode has written, if any, as the last one."""
    if states.num_places == 0:
        return
    is_written = end % states.interval == 0 and not is_mixed
    if is_written:
        held.last = held.hit_place
        held.depth = end
    if states.is_lazy:
        if is_written:
            held.next = held.last
            other = 1 - held.last
            if slot_in(held, other) != 0:
                free_state(states, slot_in(held, other))
                fill_place(held, other, 0)
    elif held.is_hit and states.num_places > 1:
        held.next = 1 - held.next


def slot_for_chunk(tree: Radix, mine: Progress, held: Holding) -> int:
    """Return the state slot that a continuing request gives to the tree, and replace it."""
    slot = allocate_state(tree.states)
    if slot == 0:
        if tree.states.is_lazy and mine.edge != 0:
            tree.nodes[mine.node].num_state_locks -= 1
            mine.edge = 0
        evict_states(tree, 1)
        slot = allocate_state(tree.states)
    if tree.states.num_places == 0:
        return slot
    given = slot_in(held, held.last)
    fill_place(held, held.last, slot)
    return given


def slot_at_end(state: Replica, k: int, owned: int) -> int:
    """Return the state slot that an ending request gives to the tree, 0 for none.

    With lazy buffers it gives no slot that its step in flight overwrites.
    """
    held, states = state.engines.sglang.held[k], state.kv.radix.states
    if states.num_places == 0:
        return held.own
    if held.depth > owned and states.num_places > 1:  # drafts beyond the end were accepted
        held.depth, held.last = held.depth_before, 1 - held.last
    if held.depth == 0 or held.depth > owned:
        return 0
    is_lost = states.is_lazy and held.is_hit and not held.is_given_back
    if is_lost and held.next == held.last and state.requests[k].num_in_flight_tokens > 0:
        return 0
    return slot_in(held, held.last)


def free_holding(states: States, held: Holding, given: int) -> None:
    """Free all state slots of a request except for the one given to the tree."""
    for place in range(-1, 2):
        slot = held.own if place < 0 else slot_in(held, place)
        if slot not in (0, given):
            free_state(states, slot)
    held.own = 0
    held.first = 0
    held.second = 0
    held.depth = 0
    held.is_hit = False
