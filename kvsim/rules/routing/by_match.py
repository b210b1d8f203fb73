"""Routers that choose by predicted prefix hits and by loads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.routing.by_load import first_point
from kvsim.rules.routing.pick import (
    any_least_cost,
    least_cost,
    least_loaded,
    least_of_two,
    longest_match,
    num_outstanding,
    smallest_tree,
)

if TYPE_CHECKING:
    from kvsim.records.routing import Balance, Lookups, Placement, TokenBound

#: Branches of the routers with prefix trees; aibrix's third branch is NO_MATCH.
BALANCED, MATCHED, SMALLEST_TREE = 0, 1, 2
NO_MATCH = 2
#: Branches of kvaware; the first is MATCHED.
RELIEVED, SESSION, REQUEST_RATE = 0, 2, 3
#: Branches of llm-d's token-aware routing: the candidates are all replicas, only the warm ones, or
#: all replicas because the warm ones are busy.
ALL, STICKY, SPILLED = 0, 1, 2


def choose_cache_aware(router: Balance, placement: Placement) -> int:
    """Return the candidate with the longest match, or the smallest tree if matches are too short.

    If the loads differ too much, return the least loaded candidate.
    """
    fewest, most, _ = num_outstanding(placement)
    if most - fewest > router.imbalance and most > router.ratio * fewest:
        placement.branch = BALANCED
        return least_loaded(placement)
    longest = longest_match(placement)
    matched = placement.candidates[longest].cached_tokens
    if matched / placement.num_prompt_tokens > router.least_match:
        placement.branch = MATCHED
        return longest
    placement.branch = SMALLEST_TREE
    return smallest_tree(placement)


def choose_ray_prefix_aware(router: Balance, placement: Placement) -> int:
    """As :func:`choose_cache_aware`; of equal matches or trees, choose that of the smallest load.

    If the loads differ too much, the less loaded of two candidates drawn at random is chosen.
    """
    fewest, most, _ = num_outstanding(placement)
    if most - fewest > router.imbalance:
        placement.branch = BALANCED
        return least_of_two(placement)
    candidates, longest = placement.candidates, longest_match(placement)
    smallest = smallest_tree(placement)
    by_match = not (
        candidates[longest].cached_tokens / placement.num_prompt_tokens < router.least_match
    )
    placement.branch = MATCHED if by_match else SMALLEST_TREE
    choice = longest if by_match else smallest
    for k in range(placement.num_candidates):
        one, best = candidates[k], candidates[choice]
        if by_match and one.cached_tokens != best.cached_tokens:
            continue
        if not by_match and one.num_entries != best.num_entries:
            continue
        if one.num_outstanding < best.num_outstanding:
            choice = k
    return choice


def choose_aibrix_prefix_cache(router: Balance, placement: Placement) -> int:
    """Of the candidates not much busier than the mean, return the one with the longest match.

    If the loads differ too much, only the least loaded candidates count.
    """
    candidates, number = placement.candidates, placement.num_candidates
    fewest, most, total = num_outstanding(placement)
    matched = candidates[longest_match(placement)].cached_tokens > 0
    placement.branch = MATCHED if matched else NO_MATCH
    is_balanced = most - fewest > router.imbalance
    if is_balanced:
        placement.branch = BALANCED
    mean, squares = total / number, 0.0
    for k in range(number):
        excess = candidates[k].num_outstanding - mean
        squares += excess * excess
    bound = mean + router.deviations * math.sqrt(squares / number)
    choice = -1
    for k in range(number):
        one = candidates[k]
        if one.num_outstanding > bound or (is_balanced and one.num_outstanding != fewest):
            continue
        if choice < 0:
            choice = k
            continue
        best = candidates[choice]
        if one.cached_tokens > best.cached_tokens or (
            one.cached_tokens == best.cached_tokens and one.num_outstanding < best.num_outstanding
        ):
            choice = k
    return choice


def choose_load_aware(router: Balance, placement: Placement) -> int:
    """Return the candidate with the largest score, the first on a tie.

    The score is the matched share of the prompt minus the weighted relative excess load.
    """
    number, total = placement.num_candidates, num_outstanding(placement)[2]
    mean = total / number
    for k in range(number):
        one = placement.candidates[k]
        rate = one.cached_tokens / placement.num_prompt_tokens
        placement.costs[k] = router.ratio * (one.num_outstanding - mean) / max(1.0, mean) - rate
    return least_cost(placement.costs, number)


def choose_kvaware(router: Lookups, placement: Placement) -> int:
    """Return the candidate with the longest match, the first on a tie, if little is missing.

    Else return the owner of the session or, without a session, the candidate with the fewest recent
    requests. If the loads differ too much, return the least loaded candidate. All replicas must be
    candidates, in the order of their indices.
    """
    if router.relief != NONE:
        fewest, most, _ = num_outstanding(placement)
        if most - fewest >= router.relief:
            placement.branch = RELIEVED
            return least_loaded(placement)
    longest = longest_match(placement)
    matched = placement.candidates[longest].cached_tokens
    if matched > 0 and matched >= placement.num_prompt_tokens - router.threshold:
        placement.branch = MATCHED
        return longest
    if placement.ring_key != NONE:
        placement.branch, ring = SESSION, router.ring
        return ring.owners[first_point(ring, placement.ring_key) % ring.num_points]
    placement.branch, best = REQUEST_RATE, 0
    for k in range(1, placement.num_candidates):
        if router.recent[k] < router.recent[best]:
            best = k
    return best


def choose_token_aware(router: TokenBound, placement: Placement) -> int:
    """Return the candidate with the fewest uncached tokens, at random among equals.

    A candidate is warm if it holds enough of the prompt. If there are warm and cold candidates,
    only warm ones count, unless each of them has at least ``most_ahead`` tokens more in flight than
    the least loaded cold one.
    """
    candidates, number = placement.candidates, placement.num_candidates
    total = placement.num_entries * placement.entry_tokens
    num_warm, warm_load, cold_load = 0, math.inf, math.inf
    for k in range(number):
        one = candidates[k]
        load = float(one.num_uncached_tokens)
        rate = one.cached_tokens / total if total > 0 else 0.0
        if rate >= router.affinity:
            num_warm, warm_load = num_warm + 1, min(warm_load, load)
        else:
            cold_load = min(cold_load, load)
    placement.branch = STICKY if 0 < num_warm < number else ALL
    if placement.branch == STICKY and warm_load - cold_load >= router.most_ahead:
        placement.branch = SPILLED
    for k in range(number):
        one = candidates[k]
        rate = one.cached_tokens / total if total > 0 else 0.0
        cost = one.num_uncached_tokens + placement.num_prompt_tokens - one.cached_tokens
        is_kept = placement.branch != STICKY or rate >= router.affinity
        placement.costs[k] = float(cost) if is_kept else math.inf
    return any_least_cost(placement.costs, number, placement.draws)


def choose_kv_aware(placement: Placement) -> int:
    """Return the candidate with the smallest cost, the first on a tie.

    The cost is the uncached tokens of the candidate's requests and of this request, times one plus
    the number of the candidate's requests.
    """
    for k in range(placement.num_candidates):
        one = placement.candidates[k]
        missing = one.num_uncached_tokens + placement.num_prompt_tokens - one.cached_tokens
        placement.costs[k] = float(missing * (1 + one.num_outstanding))
    return least_cost(placement.costs, placement.num_candidates)
