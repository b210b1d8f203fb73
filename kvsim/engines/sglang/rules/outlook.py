"""Admission without a tree and without EOS: all requests must fit until each has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.budget import rem_current

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def foresees_room(state: Replica, k: int, num_tokens: int) -> bool:
    """Return True if slots suffice until a request and all admitted ones end, shortest first.

    The list of these requests is made once in a pass; a request tried later joins it.
    """
    scheduler = state.engines.sglang
    if scheduler.num_states < 0:
        scheduler.num_states = 0
        add_outlook(state, k, scheduler.num_states)
        for place in range(scheduler.num_running):
            add_outlook(state, scheduler.running[place], scheduler.num_states)
        for place in range(scheduler.num_admitted):
            add_outlook(state, scheduler.admitted[place], scheduler.num_states)
        sort_outlooks(state)
    else:
        add_outlook(state, k, place_of(state, tokens_left(state, k)))
    left, freed = rem_current(state) - num_tokens, 0
    for place in range(scheduler.num_states):
        behind = scheduler.num_states - place
        if left + freed - scheduler.states_left[place] * behind <= behind:
            return False
        freed += scheduler.states_held[place]
    return True


def tokens_left(state: Replica, k: int) -> float:
    """Return the tokens that a request is still expected to generate."""
    mine = state.engines.sglang.progress[k]
    ratio = 1.0 if mine.ignores_eos else state.engines.sglang.ratio
    return mine.max_new * ratio - state.requests[k].num_output_tokens


def place_of(state: Replica, left: float) -> int:
    """Return the index at which to insert a request with ``left`` tokens left.

    This is the index of the first entry with at least ``left`` tokens, or else of the last entry.
    """
    for place in range(state.engines.sglang.num_states):
        if left <= state.engines.sglang.states_left[place]:
            return place
    return max(state.engines.sglang.num_states - 1, 0)


def add_outlook(state: Replica, k: int, place: int) -> None:
    """Insert a request into the list, unless it has no tokens left."""
    scheduler, left = state.engines.sglang, tokens_left(state, k)
    if left <= 0:
        return
    for later in range(scheduler.num_states, place, -1):
        scheduler.states_left[later] = scheduler.states_left[later - 1]
        scheduler.states_held[later] = scheduler.states_held[later - 1]
    scheduler.states_left[place] = left
    scheduler.states_held[place] = state.requests[k].num_tokens
    scheduler.num_states += 1


def sort_outlooks(state: Replica) -> None:
    """Sort the list by tokens left; equal entries keep their order."""
    scheduler = state.engines.sglang
    for place in range(1, scheduler.num_states):
        left, held, at = scheduler.states_left[place], scheduler.states_held[place], place
        while at > 0 and scheduler.states_left[at - 1] > left:
            scheduler.states_left[at] = scheduler.states_left[at - 1]
            scheduler.states_held[at] = scheduler.states_held[at - 1]
            at -= 1
        scheduler.states_left[at] = left
        scheduler.states_held[at] = held
