"""The host's loops over the replicas of a fleet, compiled: one call for all of them.

Rules are called by the address of their entry, so that this code compiles without them. The host
runs a replica that has no address.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kvsim.compiled.types import WORD, prefetch, record_at
from kvsim.records.engine import DONE, Replica
from kvsim.records.request import FINISHED
from kvsim.rules.abort import IN_FLIGHT
from kvsim.rules.fetching import AHEAD

_replica = record_at(Replica, "")


@intrinsic
def call_entry(typing_context: Any, entry: Any, address: Any, command: Any, argument: Any) -> Any:
    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD] * 3).as_pointer()
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int64(*[types.int64] * 4), generate


@njit(cache=True)
def ask_for_step(state):
    """Prefetch the requests of the step that ends next."""
    entries = state.batches[state.first_batch].entries
    for line in range(4):
        prefetch(entries, 0, line)


@njit(cache=True)
def ask_for_requests(state):
    batch = state.batches[state.first_batch]
    for at in range(min(AHEAD, batch.size)):
        prefetch(state.requests, batch.entries[at].request, 0)


@njit(cache=True)
def advance_due(entries, addresses, times, ended, first, target, command, most_steps):
    """Advance replicas to a time, from one on; return the one that needs the host, else -1.

    ``times`` are their next events, ``ended`` counts the requests that end.
    """
    for place in range(first, len(times)):
        if times[place] <= target and addresses[place] != 0:
            ask_for_step(_replica(addresses[place]))
    for place in range(first, len(times)):
        if times[place] <= target and addresses[place] != 0:
            ask_for_requests(_replica(addresses[place]))
    for place in range(first, len(times)):
        before = -math.inf
        while before < times[place] <= target and times[place] < math.inf:
            before = times[place]
            if entries[place] == 0:
                return place
            state = _replica(addresses[place])
            state.horizon = target
            state.until_finish = False
            state.num_ended = 0
            outcome = call_entry(entries[place], addresses[place], command, most_steps)
            ended[place] += state.num_ended
            if outcome != DONE:
                return place
            times[place] = state.next_event_time
    return -1


@njit(cache=True)
def advance_in_turn(entries, addresses, times, ended, waits, target, ahead, command, most_steps):
    """Advance replicas that wait for each other, the one with the next event first.

    Each stops at the next event of another one, ``ahead`` seconds later, or at the target. Returns
    the place where requests have ended, or that needs the host, and where that stops; -1 if all
    have reached the target. ``waits``: can only start a step there. Plain text: ``ReplicaSet``.
    """
    while True:
        place, first, second = -1, math.inf, math.inf
        for k in range(len(times)):
            if times[k] < first and not waits[k]:
                place, first, second = k, times[k], first
            elif times[k] < second:
                second = times[k]
        if first > target or first == math.inf:
            return -1, target
        horizon = min(target, max(second + ahead, math.nextafter(first, math.inf)))
        if entries[place] == 0:
            return place, horizon
        state = _replica(addresses[place])
        state.horizon = horizon
        state.until_finish = True
        state.num_ended = 0
        if call_entry(entries[place], addresses[place], command, most_steps) != DONE:
            return place, horizon
        times[place] = state.next_event_time
        if times[place] == first and first >= horizon:
            waits[place] = True
        if state.num_ended > 0:
            ended[place] = state.num_ended
            return place, horizon


@njit(cache=True)
def look_up(entries, addresses, command, request_id):
    """Return the longest cached prefix of a prompt on any replica, in tokens."""
    most = 0
    for place in range(len(addresses)):
        call_entry(entries[place], addresses[place], command, request_id)
        most = max(most, _replica(addresses[place]).found_tokens)
    return most


@njit(cache=True)
def collect_lifecycle_events(addresses, seen, table, waits, tokens, lines, counts):
    """Return first tokens and ends since the last call: time, whether an end, request, replica.

    ``seen`` are the clock and the number of first tokens at each place at the last look, ``table``
    reason, first token and finish by request; ``waits`` says at which place a request
    waits for a first token, and ``tokens`` is scratch. ``lines`` are the first and the last request
    at each place, and behind each request the next; ``counts``, the requests at a place, and
    how many of them wait.
    """
    most = 2 * counts[:, 0].sum()
    news = np.empty(most), np.empty((most, 3), np.int64)
    number = 0
    for place in range(len(addresses)):
        if addresses[place] != 0 and counts[place, 0] > 0:
            state = _replica(addresses[place])
            number = look_at(state, place, seen, table, waits, tokens, lines, counts, news, number)
    return news[0][:number], news[1][:number]


@njit(cache=True)
def look_at(state, place, seen, table, waits, tokens, lines, counts, news, number):
    """Record the lifecycle events of a replica's requests; return the number of rows."""
    if state.clock == seen[place, 0]:
        return number
    seen[place, 0] = state.clock
    left = counts[place, 0] - state.num_outstanding
    if left > 0:
        number = take_ends(place, left, state.clock, table, waits, lines, counts, news, number)
    if state.num_started != seen[place, 1]:
        most = min(counts[place, 1], state.num_started - max(seen[place, 1], 0))
        seen[place, 1] = state.num_started
        if most > 0:
            left = see_tokens(state, place, waits, tokens, most)
            number = take_tokens(place, left, waits, tokens, lines, counts, news, number)
    return number


@njit(cache=True)
def send(request_id, place, waits, lines, counts):
    """Append a request to those of a replica; it waits for its first token."""
    firsts, lasts, afters = lines
    waits[request_id] = place
    last = lasts[place]
    if last < 0:
        firsts[place] = request_id
    else:
        afters[last] = request_id
    lasts[place], afters[request_id] = request_id, -1
    counts[place, 0] += 1
    counts[place, 1] += 1


@njit(cache=True)
def write(news, number, time, is_end, request_id, place):
    """Write a row; return the number of rows."""
    news[0][number] = time
    news[1][number, 0] = is_end
    news[1][number, 1] = request_id
    news[1][number, 2] = place
    return number + 1


@njit(cache=True)
def take_ends(place, left, clock, table, waits, lines, counts, news, number):
    """Record the requests that a replica ended or refused, and remove them from its list."""
    reasons, first_tokens, finishes = table
    firsts, lasts, afters = lines
    before, at = -1, firsts[place]
    while at >= 0 and left > 0:
        after = afters[at]
        if reasons[at] == IN_FLIGHT:
            before, at = at, after
            continue
        left -= 1
        end = clock if np.isnan(finishes[at]) else finishes[at]
        if waits[at] == place:
            waits[at] = -1
            counts[place, 1] -= 1
            first = end if np.isnan(first_tokens[at]) else first_tokens[at]
            number = write(news, number, first, 0, at, place)
        number = write(news, number, end, 1, at, place)
        counts[place, 0] -= 1
        if before >= 0:
            afters[before] = after
        else:
            firsts[place] = after
        if after < 0:
            lasts[place] = before
        at = after
    return number


@njit(cache=True)
def see_tokens(state, place, waits, tokens, most):
    """Record first tokens of waiting requests; returns the number of them.

    At most ``most`` requests got one since the last look, usually the ones admitted last.
    """
    number = 0
    if not state.limits.has_own_loop:
        for at in range(state.num_running - 1, -1, -1):
            number += see_token(state.requests[state.running[at]], place, waits, tokens)
            if number == most:
                return number
    for k in range(state.num_requests):  # one has been preempted, or has ended
        number += see_token(state.requests[k], place, waits, tokens)
    return number


@njit(cache=True)
def see_token(request, place, waits, tokens):
    """Record a first token; returns 1 if a request waits for it, else 0."""
    if request.status == FINISHED or math.isnan(request.first_token_time):
        return 0  # a record that is free may be of the same request, which has come again
    if waits[request.request_id] != place or not math.isnan(tokens[request.request_id]):
        return 0
    tokens[request.request_id] = request.first_token_time
    return 1


@njit(cache=True)
def take_tokens(place, left, waits, tokens, lines, counts, news, number):
    """Record the first tokens just found, in the order in which the requests were sent."""
    firsts, _, afters = lines
    at = firsts[place]
    while at >= 0 and left > 0:
        if waits[at] == place and not math.isnan(tokens[at]):
            left -= 1
            waits[at] = -1
            counts[place, 1] -= 1
            number = write(news, number, tokens[at], 0, at, place)
            tokens[at] = math.nan
        at = afters[at]
    return number
