"""llm-d's scores from 0 to 1, and the choice by their weighted sum.

Source: llm-d-inference-scheduler at 520af478, pkg/epp/framework/plugins/scheduling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.routing.draws import random_below
from kvsim.rules.routing.pick import any_least_cost

if TYPE_CHECKING:
    from kvsim.records.routing import Placement, ScoreWeights

#: Smallest number of tokens in flight with a token-load score of 0.
MOST_TOKENS = 4_194_304
#: Smallest number of waiting requests with a load-aware score of 0.
MOST_WAITING = 128


def least_is_best(value: int, low: int, high: int) -> float:
    """Score a number linearly: 1 for the lowest, 0 for the highest; 1 if all are equal."""
    if high == low:
        return 1.0
    return (high - value) / (high - low)


def among_holders(matched: int, low: int, high: int) -> float:
    """Score a matched prefix linearly: 0 for the shortest or none, 1 for the longest.

    If all matches are equal, each scores 1. llm-d's scorer of the precise index did so in 2025
    (llm-d-inference-scheduler at c8e1e2a8, pkg/plugins/scorer/utils.go); the current one uses the
    share of the prompt.
    """
    if high == low:
        return 1.0 if matched > 0 else 0.0
    return (matched - low) / (high - low) if matched > 0 else 0.0


def active_requests(number: int, most: int) -> float:
    """Score requests in flight: 1 for an idle replica, 0 for the busiest one, linear between."""
    return 1.0 if number <= 0 else (most - number) / most


def token_load(num_tokens: int) -> float:
    """Score tokens in flight linearly: 1 for none, 0 from MOST_TOKENS on."""
    return 1 - min(1.0, num_tokens / MOST_TOKENS)


def load_aware(num_waiting: int) -> float:
    """Score waiting requests linearly: 0.5 for none, 0 from MOST_WAITING on."""
    return 0.5 * (1 - min(num_waiting, MOST_WAITING) / MOST_WAITING)


def prefix_score(router: ScoreWeights, placement: Placement, matched: int) -> float:
    """Score a match of ``matched`` tokens by its share of the prompt, or relative to others."""
    if router.among_holders:
        return among_holders(matched, placement.least_held, placement.most_held)
    total = placement.num_entries * placement.entry_tokens
    return matched / total if total > 0 else 0.0


def score(router: ScoreWeights, placement: Placement) -> None:
    """Set ``placement.costs`` to the negated weighted sum of each candidate's scores."""
    first = placement.candidates[0]
    least_waiting = most_waiting = first.num_waiting
    least_running = most_running = first.num_running
    most_active = first.num_outstanding
    for k in range(1, placement.num_candidates):
        one = placement.candidates[k]
        least_waiting = min(least_waiting, one.num_waiting)
        most_waiting = max(most_waiting, one.num_waiting)
        least_running = min(least_running, one.num_running)
        most_running = max(most_running, one.num_running)
        most_active = max(most_active, one.num_outstanding)
    for k in range(placement.num_candidates):
        one, total = placement.candidates[k], 0.0
        if router.prefix > 0:
            total += router.prefix * prefix_score(router, placement, one.cached_tokens)
        if router.queue > 0:
            total += router.queue * least_is_best(one.num_waiting, least_waiting, most_waiting)
        if router.kv > 0:
            total += router.kv * (1 - one.kv_usage)
        if router.running > 0:
            total += router.running * least_is_best(one.num_running, least_running, most_running)
        if router.active > 0:
            total += router.active * active_requests(one.num_outstanding, most_active)
        if router.tokens > 0:
            total += router.tokens * token_load(one.num_prompt_tokens)
        if router.load > 0:
            total += router.load * load_aware(one.num_waiting)
        placement.costs[k] = -total


def choose_llm_d(router: ScoreWeights, placement: Placement) -> int:
    """Return the candidate with the largest weighted sum of scores, at random among equals.

    With ``router.is_random``, return any candidate.
    """
    if router.is_random:
        return random_below(placement.draws, placement.num_candidates)
    score(router, placement)
    return any_least_cost(placement.costs, placement.num_candidates, placement.draws)
