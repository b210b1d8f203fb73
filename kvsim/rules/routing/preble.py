"""Preble's E2: the costs of replicas, by recent misses, ended requests, and evictions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.rules.links import enter_bucket, find_in_bucket, leave_bucket, new_place
from kvsim.rules.routing.pick import least_cost
from kvsim.rules.routing.prefills import computing_seconds

if TYPE_CHECKING:
    from kvsim.records.routing import Candidate, LastValues, Placement, PrebleCosts, RecentMisses

#: Branches.
EXPLORE, EXPLOIT, BALANCED = 0, 1, 2
#: Bits of a word of a mask.
WORD = 32


def add_uses(misses: RecentMisses, key: int) -> int:
    """Make an entry without uses; return its index."""
    at = new_place(misses, misses.uses)
    misses.uses[at].reset()
    misses.uses[at].key = key
    enter_bucket(misses, misses.uses, at)
    return at


def drop_uses(misses: RecentMisses, at: int) -> None:
    """Remove an entry that has no uses left."""
    leave_bucket(misses, misses.uses, at)
    misses.uses[at].chain = misses.first_free
    misses.first_free = at


def compared(misses: RecentMisses, masks: list[int], at: int) -> int:
    """Return -1, 0 or 1 if the mask at an index is, as a number, below, equal to or above asked."""
    for k in range(misses.num_words - 1, -1, -1):
        word = masks[at * misses.num_words + k]
        if word != misses.asked[k]:
            return -1 if word < misses.asked[k] else 1
    return 0


def place_of_asked(misses: RecentMisses) -> int:
    """Return the place of the asked mask in the order of sets."""
    first, stop = 0, misses.num_ordered
    while first < stop:
        middle = (first + stop) // 2
        if compared(misses, misses.ranked, middle) < 0:
            first = middle + 1
        else:
            stop = middle
    return first


def move_sets(misses: RecentMisses, place: int, target: int) -> None:
    """Move the sets from a place in the order on to a target, the next or the previous place."""
    words, step = misses.num_words, target - place
    first, stop = (misses.num_ordered - 1, place - 1) if step > 0 else (place, misses.num_ordered)
    for k in range(first, stop, -step):
        misses.order[k + step] = misses.order[k]
        for word in range(words):
            misses.ranked[(k + step) * words + word] = misses.ranked[k * words + word]
    misses.num_ordered += step


def asked_set(misses: RecentMisses) -> int:
    """Return the set of the asked mask; make it if there is none."""
    place = place_of_asked(misses)
    if place < misses.num_ordered and compared(misses, misses.ranked, place) == 0:
        return misses.order[place]
    at = misses.free_set
    if at != 0:
        misses.free_set = misses.sets[at].after
    else:
        at = misses.num_sets
        misses.num_sets += 1
    one = misses.sets[at]
    one.reset()
    for replica in range(misses.num_replicas):
        one.num_replicas += misses.asked[replica // WORD] >> replica % WORD & 1
    move_sets(misses, place, place + 1)
    misses.order[place] = at
    for k in range(misses.num_words):
        misses.masks[at * misses.num_words + k] = misses.asked[k]
        misses.ranked[place * misses.num_words + k] = misses.asked[k]
    return at


def drop_set(misses: RecentMisses, at: int) -> None:
    """Remove a set without misses."""
    place = 0
    while misses.order[place] != at:
        place += 1
    move_sets(misses, place + 1, place)
    misses.sets[at].after = misses.free_set
    misses.free_set = at


def add_misses(misses: RecentMisses, at: int, change: int) -> None:
    """Change the misses of a set, whose replicas become stale."""
    one, first = misses.sets[at], at * misses.num_words
    one.missed += change
    if one.stamp != misses.stamp:
        one.stamp = misses.stamp
        for replica in range(misses.num_replicas):
            misses.is_stale[replica] |= misses.masks[first + replica // WORD] >> replica % WORD & 1
    if one.missed == 0:
        drop_set(misses, at)


def count_use(misses: RecentMisses, key: int, change: int, missed: int) -> None:
    """Add a use of an entry (``change`` 1) or remove one (-1); ``missed`` is 1 for a miss.

    ``asked`` is the mask of the present holders of the entry; they now bear all its misses.
    """
    at = find_in_bucket(misses, misses.uses, key)
    if at == 0:
        at = add_uses(misses, key)
    uses = misses.uses[at]
    uses.number += change
    if missed or (uses.missed > 0 and compared(misses, misses.masks, uses.holders) != 0):
        if uses.missed > 0:
            add_misses(misses, uses.holders, -uses.missed)
        uses.missed += change * missed
        if uses.missed > 0:
            uses.holders = asked_set(misses)
            add_misses(misses, uses.holders, uses.missed)
    if uses.number == 0:
        drop_uses(misses, at)


def share_out(misses: RecentMisses) -> None:
    """Update the seconds of the stale replicas.

    The misses of a set are divided among its replicas. Sums are in the order of sets, so that they
    do not depend on the order of changes.
    """
    for replica in range(misses.num_replicas):
        if misses.is_stale[replica] == 0:
            continue
        misses.is_stale[replica] = 0
        word, bit, seconds = replica // WORD, replica % WORD, 0.0
        for k in range(misses.num_ordered):
            if misses.ranked[k * misses.num_words + word] >> bit & 1 != 0:
                one = misses.sets[misses.order[k]]
                seconds += one.missed / one.num_replicas * misses.piece_time
        misses.seconds[replica] = seconds
    misses.stamp += 1


def add_value(last: LastValues, replica: int, value: float) -> None:
    """Add a value of a replica, in place of its oldest one if there are enough, and its median."""
    number, first = last.numbers[replica], replica * last.most
    last.numbers[replica] = number + 1
    size = min(number + 1, last.most)
    oldest, gap = first + number % last.most, first + size - 1
    if number >= last.most:
        while last.ranked[gap] != last.values[oldest]:
            gap -= 1
    last.values[oldest] = value
    while gap > first and last.ranked[gap - 1] > value:
        last.ranked[gap] = last.ranked[gap - 1]
        gap -= 1
    while gap < first + size - 1 and last.ranked[gap + 1] < value:
        last.ranked[gap] = last.ranked[gap + 1]
        gap += 1
    last.ranked[gap] = value
    middle = first + size // 2
    last.medians[replica] = last.ranked[middle]
    if size % 2 == 0:
        last.medians[replica] = (last.ranked[middle - 1] + last.ranked[middle]) / 2


def note_output(router: PrebleCosts, replica: int, num_tokens: int, seconds: float) -> None:
    """Handle the end of a request, ``seconds`` after its first token."""
    add_value(router.outputs, replica, float(num_tokens))
    if num_tokens > 1:
        add_value(router.tpots, replica, seconds / (num_tokens - 1))


def eviction_seconds(router: PrebleCosts, placement: Placement, one: Candidate) -> float:
    """Return the prefill seconds of the entries that a replica would evict for the prompt."""
    added = placement.num_entries - one.cached_tokens // placement.entry_tokens
    return max(one.num_entries + added - router.capacity, 0) * router.misses.piece_time


def balanced(router: PrebleCosts, placement: Placement, choice: int) -> int:
    """Return the choice or, if it is the most loaded by far, the least loaded candidate."""
    number, loads = placement.num_candidates, router.loads
    if router.num_sent < router.warm_up * number:
        return choice
    most, least = loads[0], least_cost(loads, number)
    for k in range(1, number):
        most = max(most, loads[k])
    if loads[choice] < most or most <= router.balance * loads[least]:
        return choice
    placement.branch = BALANCED
    return least


def choose_preble(router: PrebleCosts, placement: Placement) -> int:
    """Return the candidate with the smallest cost, the first on a tie; see the class ``Preble``.

    All replicas must be candidates, in the order of their indices.
    """
    share_out(router.misses)
    prompt, longest = placement.num_prompt_tokens, placement.most_held
    placement.branch = EXPLOIT if prompt - longest < longest else EXPLORE
    for k in range(placement.num_candidates):
        one = placement.candidates[k]
        decoding = one.num_outstanding * router.outputs.medians[k] * router.tpots.medians[k]
        router.loads[k] = router.misses.seconds[k] + decoding
        placement.costs[k] = math.inf
        if placement.branch == EXPLORE or one.cached_tokens == longest:
            placement.costs[k] = router.loads[k] + eviction_seconds(router, placement, one)
            if router.own_prefill:
                placement.costs[k] += computing_seconds(router.price, prompt, one.cached_tokens)
    choice = balanced(router, placement, least_cost(placement.costs, placement.num_candidates))
    router.num_sent += 1
    return choice
