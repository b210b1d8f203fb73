"""Choices that several routers share: by cost, by load, by match, or of two drawn candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.routing.draws import random_below

if TYPE_CHECKING:
    from kvsim.records.routing import Draws, Placement


def least_loaded(placement: Placement) -> int:
    """Return the candidate with the fewest requests in flight, the first on a tie."""
    candidates, best = placement.candidates, 0
    for k in range(1, placement.num_candidates):
        if candidates[k].num_outstanding < candidates[best].num_outstanding:
            best = k
    return best


def longest_match(placement: Placement) -> int:
    """Return the candidate with the longest match, the first on a tie."""
    candidates, best = placement.candidates, 0
    for k in range(1, placement.num_candidates):
        if candidates[k].cached_tokens > candidates[best].cached_tokens:
            best = k
    return best


def smallest_tree(placement: Placement) -> int:
    """Return the candidate with the fewest entries in the prefix index, the first on a tie."""
    candidates, best = placement.candidates, 0
    for k in range(1, placement.num_candidates):
        if candidates[k].num_entries < candidates[best].num_entries:
            best = k
    return best


def least_cost(costs: list[float], number: int) -> int:
    """Return the index of the smallest of the first ``number`` costs, the first on a tie."""
    best = 0
    for k in range(1, number):
        if costs[k] < costs[best]:
            best = k
    return best


def any_least_cost(costs: list[float], number: int, draws: Draws) -> int:
    """Return the index of the smallest of the first ``number`` costs, at random among equals."""
    best, equal = 0, 1
    for k in range(1, number):
        if costs[k] < costs[best]:
            best, equal = k, 1
        elif costs[k] == costs[best]:
            equal += 1
    left = random_below(draws, equal)
    place = best
    while left > 0:
        place += 1
        if costs[place] == costs[best]:
            left -= 1
    return place


def any_longest_match(placement: Placement) -> int:
    """Return the candidate with the longest match, at random among equals."""
    for k in range(placement.num_candidates):
        placement.costs[k] = -float(placement.candidates[k].cached_tokens)
    choice = any_least_cost(placement.costs, placement.num_candidates, placement.draws)
    placement.branch = 1 if placement.candidates[choice].cached_tokens > 0 else 0
    return choice


def least_of_two(placement: Placement) -> int:
    """Draw two different candidates; return the less loaded one, the first drawn on a tie."""
    number, candidates = placement.num_candidates, placement.candidates
    if number == 1:
        return 0
    first = random_below(placement.draws, number)
    second = random_below(placement.draws, number - 1)
    if second >= first:
        second += 1
    if candidates[second].num_outstanding < candidates[first].num_outstanding:
        return second
    return first


def num_outstanding(placement: Placement) -> tuple[int, int, int]:
    """Return (fewest, most, sum) of the candidates' requests in flight."""
    fewest = most = total = placement.candidates[0].num_outstanding
    for k in range(1, placement.num_candidates):
        number = placement.candidates[k].num_outstanding
        fewest, most, total = min(fewest, number), max(most, number), total + number
    return fewest, most, total
