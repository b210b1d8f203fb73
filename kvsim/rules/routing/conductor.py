"""Mooncake's Conductor: the earliest predicted first token, or a rejection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.python import python_fetch_time
from kvsim.rules.routing.pick import least_cost
from kvsim.rules.routing.prefills import computing_seconds

if TYPE_CHECKING:
    from kvsim.records.routing import Candidate, FirstTokens, Placement

#: The choice of a router that rejects a request.
REJECT = -1
TURNED_AWAY, FASTEST_STEP, LONGEST_MATCH, SHORTER_QUEUE, TRANSFER, NO_MATCH = range(6)


def reads_match(router: FirstTokens, cached: int, longest: int) -> bool:
    """Return True if a replica with ``cached`` tokens reads the best match of another one."""
    return router.can_read and cached < longest and longest >= router.threshold * cached


def seconds_alone(router: FirstTokens, prompt: int, cached: int, longest: int) -> float:
    """Return the seconds until a prompt's first token at a replica with an empty queue."""
    if not reads_match(router, cached, longest):
        return computing_seconds(router.price, prompt, cached)
    reading = python_fetch_time(router.price, longest - cached)
    return reading + computing_seconds(router.price, prompt, longest)


def predict_own(router: FirstTokens, placement: Placement) -> None:
    """Set ``own_seconds`` of each candidate; candidates without a match have one price."""
    prompt, longest = placement.num_prompt_tokens, placement.most_held
    last, seconds, without = NONE, 0.0, -1.0
    for k in range(placement.num_candidates):
        one = placement.candidates[k]
        if one.cached_tokens == 0:
            if without < 0.0:
                without = seconds_alone(router, prompt, 0, longest)
            one.own_seconds = without
            continue
        if one.cached_tokens != last:
            last = one.cached_tokens
            seconds = seconds_alone(router, prompt, last, longest)
        one.own_seconds = seconds


def chosen_branch(router: FirstTokens, placement: Placement, one: Candidate) -> int:
    """Return the branch that explains the choice of a candidate."""
    if router.only_decodes:
        return FASTEST_STEP
    if placement.most_held == 0:
        return NO_MATCH
    if reads_match(router, one.cached_tokens, placement.most_held):
        return TRANSFER
    return LONGEST_MATCH if one.cached_tokens == placement.most_held else SHORTER_QUEUE


def choose_conductor(router: FirstTokens, placement: Placement) -> int:
    """Return the candidate with the earliest predicted first token, the first on a tie.

    In a decode pool, return the one with the shortest predicted step. Return REJECT if a target
    would be missed.
    """
    if not router.only_decodes:
        predict_own(router, placement)
    for k in range(placement.num_candidates):
        one = placement.candidates[k]
        time = one.queued_seconds + one.own_seconds
        placement.costs[k] = one.step_seconds if router.only_decodes else time
    choice = least_cost(placement.costs, placement.num_candidates)
    one = placement.candidates[choice]
    late = one.queued_seconds + one.own_seconds > router.ttft_slo
    placement.branch = TURNED_AWAY
    if late or one.step_seconds > router.tbt_slo:
        return REJECT
    placement.branch = chosen_branch(router, placement, one)
    return choice
