"""Routers that choose by load: by requests in flight, or by the metrics of the last scrape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.rules.routing.pick import any_least_cost, least_cost, num_outstanding

if TYPE_CHECKING:
    from kvsim.records.routing import BoundedRing, CountedSince, Placement, TokenRates

#: A waiting request counts as much as this number of running requests.
WAITING = 4
#: Seed word that separates the points of a hash ring from keys.
POINT = 0x72696E67
#: Branches of chwbl: the owner of the key, or a later replica on the ring.
OWNER, SPILLED = 0, 1


def choose_vllm_dp(router: CountedSince, placement: Placement) -> int:
    """Return the candidate with the smallest ``4 * waiting + running``, the first on a tie."""
    for k in range(placement.num_candidates):
        one = placement.candidates[k]
        if one.as_of != router.as_of[one.index]:
            router.as_of[one.index] = one.as_of
            router.sent[one.index] = 0
        waiting = one.num_waiting + router.sent[one.index]
        placement.costs[k] = float(WAITING * waiting + one.num_running)
    choice = least_cost(placement.costs, placement.num_candidates)
    if router.counts_sent:
        router.sent[placement.candidates[choice].index] += 1
    return choice


def choose_least_kv(placement: Placement) -> int:
    """Return the candidate with the smallest KV usage, at random among equals."""
    for k in range(placement.num_candidates):
        placement.costs[k] = placement.candidates[k].kv_usage
    return any_least_cost(placement.costs, placement.num_candidates, placement.draws)


def choose_aibrix_throughput(router: TokenRates, placement: Placement) -> int:
    """Return the candidate with the smallest token rate, at random among equals.

    It is twice the rate of prompt tokens plus that of output tokens, between the last two scrapes.
    """
    for k in range(placement.num_candidates):
        one = placement.candidates[k]
        seconds = one.as_of - router.as_of[one.index]
        if seconds > 0:
            prompts = one.prompt_tokens - router.prompt_tokens[one.index]
            outputs = one.generation_tokens - router.generation_tokens[one.index]
            router.rates[one.index] = (2 * prompts + outputs) / seconds
            router.as_of[one.index] = one.as_of
            router.prompt_tokens[one.index] = one.prompt_tokens
            router.generation_tokens[one.index] = one.generation_tokens
        placement.costs[k] = router.rates[one.index]
    return any_least_cost(placement.costs, placement.num_candidates, placement.draws)


def first_point(ring: BoundedRing, key: int) -> int:
    """Return the place of the first point that is not below a key."""
    first, stop = 0, ring.num_points
    while first < stop:
        middle = (first + stop) // 2
        if ring.points[middle] < key:
            first = middle + 1
        else:
            stop = middle
    return first


def choose_chwbl(router: BoundedRing, placement: Placement) -> int:
    """Return the first replica clockwise from the key whose load is within the bound.

    All replicas must be candidates, in the order of their indices.
    """
    total = num_outstanding(placement)[2]
    bound = math.ceil((1 + router.epsilon) * total / placement.num_candidates - 1e-9)  # 1.1 * 10
    first = first_point(router, placement.ring_key)
    owner = router.owners[first % router.num_points]
    choice = owner
    while placement.candidates[choice].num_outstanding > bound:
        first += 1
        choice = router.owners[first % router.num_points]
    placement.branch = OWNER if choice == owner else SPILLED
    return choice
