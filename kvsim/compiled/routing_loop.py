"""The decisions of a router in one compiled loop: arrivals, replicas, costs, submissions.

It decides as :class:`kvsim.fleet.routers.dynamo.Dynamo` does behind one gateway, by the same
formula, and comes back to the host for what takes memory or Python.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from kvsim.compiled.key_table import EMPTY, name_path
from kvsim.compiled.live_blocks import match_live
from kvsim.compiled.replica_set import _replica, advance_due, call_entry, look_at, send
from kvsim.compiled.sent import bound_depths, note_sent
from kvsim.rules.blocks.keys import FIRST_KEY
from kvsim.rules.engine import ADVANCE, NEXT_EVENT
from kvsim.rules.routing.dynamo import dynamo_cost

#: What the host is asked for: nothing more, to let time pass, to bring a replica on, to make room
#: in a replica's list of submissions, or in the lists of who is where.
DONE, LATER, ADVANCE_ONE, SUBMIT, MORE_ROOM = range(5)

cost_of = njit(cache=True)(dynamo_cost)


@njit(cache=True)
def num_shared(prompts, one, other):
    """Return the length of the common prefix of two prompts, and whether the first is smaller.

    The order is that of (salt, content and place token by token, length, number): of all others,
    a prompt's neighbours begin most like it.
    """
    contents, starts, lengths, offsets, salts = prompts
    if salts[one] != salts[other]:
        return 0, salts[one] < salts[other]
    a, a_stop, b, b_stop = offsets[one], offsets[one + 1], offsets[other], offsets[other + 1]
    a_done, b_done, number = 0, 0, 0
    while a < a_stop and b < b_stop:
        if contents[a] != contents[b]:
            return number, contents[a] < contents[b]
        if starts[a] + a_done != starts[b] + b_done:
            return number, starts[a] + a_done < starts[b] + b_done
        both = min(lengths[a] - a_done, lengths[b] - b_done)
        number, a_done, b_done = number + both, a_done + both, b_done + both
        if a_done == lengths[a]:
            a, a_done = a + 1, 0
        if b_done == lengths[b]:
            b, b_done = b + 1, 0
    if a < a_stop or b < b_stop:
        return number, a == a_stop
    return number, one < other


@njit(cache=True)
def place_of(prompts, there, count, row):
    """Return the index of a prompt in the sorted list, or the index to insert it."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if num_shared(prompts, there[middle], row)[1]:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True)
def num_own(prompts, there, count, at, row, size):
    """Count the full blocks of a prompt that its neighbours in the sorted list lack."""
    shared = 0
    for beside in range(max(at - 1, 0), min(at + 1, count)):
        shared = max(shared, num_shared(prompts, there[beside], row)[0])
    lengths, offsets = prompts[2], prompts[3]
    return lengths[offsets[row] : offsets[row + 1]].sum() // size - shared // size


@njit(cache=True)
def come(prompts, there, counts, place, row, size):
    """Add a prompt to the sorted list; return its own full blocks. As ``PathSet``."""
    count = counts[place]
    at = place_of(prompts, there[place], count, row)
    number = num_own(prompts, there[place], count, at, row, size)
    for k in range(count, at, -1):
        there[place, k] = there[place, k - 1]
    there[place, at] = row
    counts[place] = count + 1
    return number


@njit(cache=True)
def go(prompts, there, counts, place, row, size):
    """Remove a prompt from the sorted list; return its own full blocks."""
    count = counts[place] - 1
    at = place_of(prompts, there[place], count + 1, row)
    for k in range(at, count):
        there[place, k] = there[place, k + 1]
    counts[place] = count
    return num_own(prompts, there[place], count, at, row, size)


@njit(cache=True)
def hear(addresses, times, heard, size, news, beliefs, prompts, told):
    """Record the lifecycle events of requests on replicas that have advanced."""
    seen, table, waits, tokens, lines, counts = news
    prefilling, decode, uncached, rests, there, numbers = beliefs
    for place in range(len(addresses)):
        if times[place] == heard[place]:
            continue
        heard[place] = times[place]
        state = _replica(addresses[place])
        if state.num_outstanding == counts[place, 0] and state.num_started == seen[place, 1]:
            continue
        number = look_at(state, place, seen, table, waits, tokens, lines, counts, told, 0)
        for k in range(number):
            row = told[1][k, 1]
            if told[1][k, 0]:
                decode[place] -= go(prompts, there, numbers, place, row, size) + rests[row]
            else:
                prefilling[place] -= uncached[row]


@njit(cache=True)
def pick(costs, rng):
    """Return the index of the smallest cost; ties are broken at random."""
    smallest, number = math.inf, 0
    for place in range(len(costs)):
        if costs[place] < smallest:
            smallest, number = costs[place], 1
        elif costs[place] == smallest:
            number += 1
    left = 0 if number == 1 else rng.integers(0, number)
    for place in range(len(costs)):
        if costs[place] == smallest:
            if left == 0:
                return place
            left -= 1
    return 0


@njit(cache=True)
def give_keys(kv, row, path, lengths, rest):
    """Write the keys of the request to be admitted next, as ``extend_keys`` computes them.

    The keys carry the request's number, so they stay unread if another request is admitted.
    """
    own_blocks = kv.request_blocks[kv.free_request_blocks[kv.num_free_request_blocks - 1]]
    for k in range(len(path)):
        own_blocks.keys[k] = path[k]
    segment = len(lengths)
    while rest > 0:
        segment -= 1
        rest -= lengths[segment]
    own_blocks.owner, own_blocks.num_keys = row, len(path)
    own_blocks.segment, own_blocks.offset = segment, -rest


@njit(cache=True)
def submit(entry, address, room, row, now):
    """Submit a request to a replica; False if its list is full."""
    state = _replica(address)
    trace = state.trace
    if trace.num_arrivals >= room:
        return False
    trace.ids[trace.num_arrivals] = row
    trace.arrival_time[trace.num_arrivals] = now
    trace.num_arrivals += 1
    state.num_outstanding += 1
    call_entry(entry, address, NEXT_EVENT, 0)
    return True


@njit(cache=True)
def decide(
    fleet, news, beliefs, prompts, known, arrivals, noted, weights, rng, cursor, steps, most
):
    """Choose replicas for requests until the host is needed; return the reason.

    Parameters
    ----------
    fleet : of each place entry, address, next event, ended requests, room for submissions, and
        the next event when it was last heard
    news : what :mod:`kvsim.compiled.replica_set` keeps of first tokens and ends
    beliefs : of each place prompt tokens ahead and blocks; of each request tokens not cached, and
        whether its last block is full in part; who is at each place, and how many
    prompts : content, start and length of segments, their places by request, and salts
    known : events of each log that are known, guesses of depths, the delay, who was sent what
    arrivals : requests in order, all of which replicas have room for, times, contents of outputs
    noted : by request, predicted and best tokens; the stride of comparisons, or 0
    weights : block size, credit, prefill weight, active weight, decay
    cursor : the next arrival, the place to bring on from, and where the last one is to go
    steps, most : after which compiled rules, and this loop, come back
    """
    entries, addresses, times, ended, rooms, heard = fleet
    prefilling, decode, uncached, rests, there, numbers = beliefs
    contents, starts, lengths, offsets, salts = prompts
    logs, guesses, delay, sent = known
    rows, planned, outputs = arrivals
    predicted, best, stride = noted
    size, credit, prefill_weight, active_weight, decay = weights
    last = min(cursor[0] + most, len(rows))
    lines = 2 * (news[5][:, 0].max() + most)
    told = np.empty(lines), np.empty((lines, 3), np.int64)
    matched, costs = np.zeros(len(addresses), np.int64), np.zeros(len(addresses))
    most_held, seen = np.zeros(len(addresses), np.int64), np.full(len(addresses), math.nan)
    looked = guesses, np.zeros_like(guesses), np.full(len(guesses), EMPTY), seen, seen.copy()
    while cursor[0] < last:
        at = cursor[0]
        row, now = rows[at], planned[at]
        place = advance_due(entries, addresses, times, ended, cursor[1], now, ADVANCE, steps)
        if place >= 0:
            cursor[1] = place
            return ADVANCE_ONE
        cursor[1] = 0
        hear(addresses, times, heard, size, news, beliefs, prompts, told)
        if numbers.max() == there.shape[1]:
            return MORE_ROOM
        first, stop = offsets[row], offsets[row + 1]
        path = name_path(
            contents[first:stop],
            starts[first:stop],
            lengths[first:stop],
            size,
            FIRST_KEY,
            salts[row],
        )
        prompt, least = lengths[first:stop].sum(), prefilling.min()
        bound_depths(sent, contents[first:stop], lengths[first:stop], size, most_held)
        held = match_live(addresses, times, logs, now - delay, path, most_held, looked, matched)
        if stride > 0 and at % stride == 0:
            best[row] = size * min(held, (prompt - 1) // size)  # the last token is computed
        for place in range(len(addresses)):
            active = _replica(addresses[place]).num_outstanding if active_weight > 0 else 0
            costs[place] = cost_of(
                *(prefilling[place], decode[place], active, size * matched[place], least),
                *(prompt, size, credit, prefill_weight, active_weight, decay, 0.0),
            )
        place = pick(costs, rng)
        predicted[row] = size * matched[place]
        uncached[row] = prompt - min(predicted[row], prompt)
        rests[row] = prompt % size > 0
        prefilling[place] += uncached[row]
        decode[place] += come(prompts, there, numbers, place, row, size) + rests[row]
        heard[place] = seen[place] = math.nan  # it may be idle again by the next look
        send(row, place, news[2], news[4], news[5])
        note_sent(sent, contents[first:stop], outputs[row], place)
        cursor[0] += 1
        state = _replica(addresses[place])
        if state.num_outstanding == state.num_running:  # nobody else waits
            give_keys(state.kv, row, path, lengths[first:stop], prompt % size)
        if not submit(entries[place], addresses[place], rooms[place], row, now):
            cursor[2] = place
            return SUBMIT
        times[place] = _replica(addresses[place]).next_event_time
    return DONE if last == len(rows) else LATER
