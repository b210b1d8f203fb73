"""The waiting queue: entry of requests, and the order in which a prefill pass tries them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import LRU as LRU_RANK
from kvsim.engines.sglang.records.scheduler import (
    DFS_WEIGHT,
    FCFS,
    HRRN,
    LOF,
    LPM,
    RANDOM,
    SHORTEST_PREFILL_FIRST,
)
from kvsim.engines.sglang.rules.adapters import time_of_loads
from kvsim.engines.sglang.rules.held import reuse_record
from kvsim.engines.sglang.rules.tree.mersenne import draw_below
from kvsim.engines.sglang.rules.tree.walk import match_prefix, num_host_found
from kvsim.engines.sglang.rules.tree.weight import is_visited_before, weigh_waiting
from kvsim.records.record import NONE
from kvsim.rules.abort import FAILED, REJECTED, end_request
from kvsim.rules.blocks.keys import mix, mix_span, span_of
from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request

#: Longer queues are not sorted by matched prefixes.
MOST_MATCHED = 128
#: Requests that begin with this many equal tokens are not prefilled together.
EQUAL_TOKENS = 32
#: One sort of the queue in this many marks the prefixes of waiting requests as used.
REFRESH_INTERVAL = 32


def enter_queue(state: Replica, k: int) -> None:
    """Append a new request, or a retracted one, to the queue."""
    mine, scheduler = state.engines.sglang.progress[k], state.engines.sglang
    if 0 < scheduler.max_queued <= state.waiting.length and not displaces(state, k):
        turn_away(state, k)
        return
    scheduler.num_entries += 1
    mine.number = scheduler.num_entries
    mine.seen = scheduler.processed
    if scheduler.adapters.is_on:
        mine.waits_since = time_of_loads(state)
    append(state.waiting, state.requests, k)


def displaces(state: Replica, k: int) -> bool:
    """Turn away the least urgent waiting request and return True, if ``k`` is more urgent."""
    scheduler, requests = state.engines.sglang, state.requests
    if not scheduler.by_priority:
        return False
    last = other = state.waiting.head
    while other != NONE:
        above = (requests[other].priority - requests[last].priority) * scheduler.sign
        is_later = scheduler.progress[other].number > scheduler.progress[last].number
        if above > 0 or (above == 0 and is_later):
            last = other
        other = requests[other].next
    if (requests[last].priority - requests[k].priority) * scheduler.sign <= 0:
        return False
    remove_from_waiting(state, last)
    turn_away(state, last)
    return True


def turn_away(state: Replica, k: int) -> None:
    """End a request for which the queue has no place: a new request, or a preempted one."""
    request, reason = state.requests[k], REJECTED
    if math.isnan(request.first_scheduled_time):
        state.totals.num_turned_away += 1
        # A rejected request does not count as waiting.
        state.totals.waiting_seconds -= state.clock - request.arrival_time
    else:
        request.finish_time, reason = state.clock, FAILED
    end_request(state, k, reason)
    reuse_record(state, k)


def remove_from_waiting(state: Replica, k: int) -> None:
    remove(state.waiting, state.requests, k)


def order_waiting(state: Replica) -> None:
    """Sort the queue by the schedule policy, in place."""
    scheduler, order = state.engines.sglang, state.engines.sglang.order
    matches = order in (LPM, HRRN, DFS_WEIGHT, SHORTEST_PREFILL_FIRST)
    if order in (LPM, HRRN) and state.waiting.length > MOST_MATCHED:
        matches = False
        order = FCFS
    elif order == FCFS and scheduler.by_priority:
        rank_by_priority(state)
        sort_waiting(state)
    elif order == LOF:
        rank_by_length(state)
        sort_waiting(state)
    elif order == RANDOM:
        shuffle_waiting(state)
    if matches:
        match_waiting(state)
        if order == DFS_WEIGHT:
            weigh_waiting(state, 1)
            scheduler.sorts_by_tree = True
            sort_waiting(state)
            scheduler.sorts_by_tree = False
            weigh_waiting(state, -1)
        else:
            defer_equals(state)
            rank_by_match(state)
            sort_waiting(state)
    elif state.kv.radix.rank == LRU_RANK and state.kv.radix.enabled and state.waiting.length > 0:
        if scheduler.num_sorts % REFRESH_INTERVAL == 0:
            refresh_waiting(state)
        scheduler.num_sorts += 1


def refresh_waiting(state: Replica) -> None:
    """Match the first waiting requests, in reverse, so that the tree keeps their prefixes."""
    count, k = 0, state.waiting.head
    while k != NONE and count < MOST_MATCHED:
        state.engines.sglang.order_now[count] = k
        count += 1
        k = state.requests[k].next
    for place in range(count - 1, -1, -1):
        request = state.requests[state.engines.sglang.order_now[place]]
        match_prefix(state.kv.radix, request, request.num_tokens)


def match_waiting(state: Replica) -> None:
    """Find the cached prefix of every waiting request, and the key of its first tokens."""
    k = state.waiting.head
    while k != NONE:
        request, mine, tree = state.requests[k], state.engines.sglang.progress[k], state.kv.radix
        match_prefix(tree, request, request.num_tokens)
        mine.matched = tree.node
        mine.num_match = min(tree.num_found + num_host_found(tree), request.num_tokens - 1)
        mine.is_late = False
        mine.group = NONE
        if tree.num_found <= EQUAL_TOKENS and request.num_tokens >= EQUAL_TOKENS:
            mine.group = beginning_of(request)
        k = request.next


def beginning_of(request: Request) -> int:
    """Compute a key of a request's first tokens, independent of their division into segments."""
    key, missing, segment = mix(1, request.cache_salt), EQUAL_TOKENS, 0
    piece, piece_start, piece_length = 0, 0, 0
    while missing > 0:
        content, start, length = span_of(request, segment)
        taken = min(length, missing)
        if piece_length > 0 and content == piece and start == piece_start + piece_length:
            piece_length += taken
        elif taken > 0:
            if piece_length > 0:
                key = mix_span(key, piece, piece_start, piece_length)
            piece, piece_start, piece_length = content, start, taken
        missing -= taken
        segment += 1
    return mix_span(key, piece, piece_start, piece_length)


def defer_equals(state: Replica) -> None:
    """Mark as late all requests but the first of each group with equal, uncached first tokens."""
    count = list_waiting(state)
    for place in range(count):
        mine = state.engines.sglang.progress[state.engines.sglang.order_now[place]]
        mine.first = 0.0
        mine.second = 0.0
        mine.third = mine.group
    sort_listed(state, count)
    for place in range(1, count):
        before = state.engines.sglang.progress[state.engines.sglang.order_now[place - 1]]
        mine = state.engines.sglang.progress[state.engines.sglang.order_now[place]]
        mine.is_late = mine.group != NONE and mine.group == before.group


def rank_by_priority(state: Replica) -> None:
    """Rank by priority, then by order of entry into the queue."""
    k = state.waiting.head
    while k != NONE:
        mine = state.engines.sglang.progress[k]
        mine.first = float(state.requests[k].priority * state.engines.sglang.sign)
        mine.second = 0.0
        mine.third = mine.number
        k = state.requests[k].next


def rank_by_length(state: Replica) -> None:
    """Rank the longest output first; with priorities, within each priority."""
    k = state.waiting.head
    while k != NONE:
        mine, by = state.engines.sglang.progress[k], int(state.engines.sglang.by_priority)
        mine.first = float(by * state.requests[k].priority * state.engines.sglang.sign)
        mine.second = -float(mine.max_new)
        mine.third = 0
        k = state.requests[k].next


def rank_by_match(state: Replica) -> None:
    """Rank by cached prefix (lpm), by missing tokens, or by the wait per missing token (hrrn)."""
    order, k = state.engines.sglang.order, state.waiting.head
    while k != NONE:
        request, mine = state.requests[k], state.engines.sglang.progress[k]
        mine.first = 1.0 if mine.is_late else 0.0
        mine.second = 0.0
        mine.third = 0
        if order == LPM and not mine.is_late:
            mine.second = -float(mine.num_match)
        elif order == SHORTEST_PREFILL_FIRST:
            mine.second = float(missing_tokens(state, k))
            mine.third = mine.number
        elif order == HRRN:
            mine.third = request.id_rank
            missing = max(0, request.num_prompt_tokens - mine.num_match)
            if mine.is_late:
                mine.first = 2.0
            elif missing > 0:
                mine.first = 1.0
                mine.second = -(max(0, state.engines.sglang.processed - mine.seen) / missing)
        k = request.next


def missing_tokens(state: Replica, k: int) -> int:
    """Return the tokens of a waiting request that its last match did not find, at least 1."""
    return max(1, state.requests[k].num_tokens - state.engines.sglang.progress[k].num_match)


def list_waiting(state: Replica) -> int:
    """Write the queue into the scratch list; return its length."""
    count, k = 0, state.waiting.head
    while k != NONE:
        state.engines.sglang.order_now[count] = k
        count += 1
        k = state.requests[k].next
    return count


def sort_waiting(state: Replica) -> None:
    """Sort the queue by its keys; requests with equal keys keep their order."""
    count = list_waiting(state)
    sort_listed(state, count)
    queue_listed(state, count)


def shuffle_waiting(state: Replica) -> None:
    """Shuffle the queue as Python does: from the end, swap each with a random one up to itself."""
    rows, count = state.engines.sglang.order_now, list_waiting(state)
    for place in range(count - 1, 0, -1):
        other = draw_below(state.engines.sglang, place + 1)
        k = rows[place]
        rows[place] = rows[other]
        rows[other] = k
    queue_listed(state, count)


def queue_listed(state: Replica, count: int) -> None:
    """Replace the queue by the scratch list."""
    state.waiting.head = NONE
    state.waiting.tail = NONE
    state.waiting.length = 0
    for place in range(count):
        append(state.waiting, state.requests, state.engines.sglang.order_now[place])


def sort_listed(state: Replica, count: int) -> None:
    """Sort the scratch list by merging longer and longer parts."""
    width = 1
    while width < count:
        for first in range(0, count, 2 * width):
            merge_parts(state, first, min(first + width, count), min(first + 2 * width, count))
        for place in range(count):
            state.engines.sglang.order_now[place] = state.engines.sglang.merged[place]
        width *= 2


def merge_parts(state: Replica, first: int, middle: int, stop: int) -> None:
    """Merge two sorted parts of the scratch list."""
    rows, merged = state.engines.sglang.order_now, state.engines.sglang.merged
    a, b = first, middle
    for place in range(first, stop):
        if b == stop or (a < middle and not stands_before(state, rows[b], rows[a])):
            merged[place] = rows[a]
            a += 1
        else:
            merged[place] = rows[b]
            b += 1


def stands_before(state: Replica, a: int, b: int) -> bool:
    """Return True if a request is before another by the keys of the policy."""
    one, other = state.engines.sglang.progress[a], state.engines.sglang.progress[b]
    if state.engines.sglang.sorts_by_tree:
        return is_visited_before(state.kv.radix, one.matched, other.matched)
    if one.first != other.first:
        return one.first < other.first
    if one.second != other.second:
        return one.second < other.second
    return one.third < other.third
