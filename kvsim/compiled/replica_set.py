"""Compiled loops over the replicas of a fleet, so that the host makes one call for all of them.

Rules are called by the address of their entry, so this code is compiled without them. A replica
without an address is run by the host.
"""

from __future__ import annotations

import math

from kvsim.compiled.translation.calls import call_int, record_at
from kvsim.records.engine import DONE, Replica
from kvsim.records.kv import PAGED
from kvsim.records.paged import FULL
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED
from kvsim.rules.abort import IN_FLIGHT
from kvsim.rules.fetching import AHEAD, prefetch_item

#: The next larger float is that plus ROUNDED times itself plus LEAST (Rump, Zimmermann, Boldo and
#: Melquiond 2009, "Computing predecessor and successor in rounding to nearest").
ROUNDED, LEAST = 2.0**-53 * (1 + 2.0**-52), 5e-324

_replica = record_at(Replica)


def prefetch_step(state):
    """Prefetch the entries of the step that ends next."""
    entries = state.batches[state.first_batch].entries
    for at in range(0, 2 * AHEAD, 4):  # a cache line has four
        prefetch_item(entries, at)


def prefetch_requests(state):
    batch = state.batches[state.first_batch]
    for at in range(min(AHEAD, batch.size)):
        prefetch_item(state.requests, batch.entries[at].request)


def advance_due(entries, addresses, times, ended, first, target, command, most_steps):
    """Advance replicas to a time, starting with ``first``; return one that needs the host, or -1.

    ``times`` are the next events of the replicas; ended requests are added to ``ended``.
    """
    for place in range(first, len(times)):
        if times[place] <= target and addresses[place] != 0:
            prefetch_step(_replica(addresses[place]))
    for place in range(first, len(times)):
        if times[place] <= target and addresses[place] != 0:
            prefetch_requests(_replica(addresses[place]))
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
            outcome = call_int(entries[place], addresses[place], command, most_steps)
            ended[place] += state.num_ended
            if outcome != DONE:
                return place
            times[place] = state.next_event_time
    return -1


def just_after(time):
    """Return the next larger float."""
    return time + (ROUNDED * abs(time) + LEAST)


def advance_in_turn(
    entries, addresses, times, ended, waits, horizons, target, ahead, command, most_steps
):
    """Advance replicas that may affect each other, always the one with the earliest event.

    A replica stops ``ahead`` seconds after the next event of any other replica, or at the target.
    Returns a replica when requests have ended there or it needs the host, and -1 when all replicas
    have reached the target. ``waits`` marks replicas that could only start a step at their horizon;
    ``horizons`` is set to that of the replica. ``ReplicaSet`` does the same in Python.
    """
    while True:
        place, first, second = -1, math.inf, math.inf
        for k in range(len(times)):
            if times[k] < first and not waits[k]:
                place, first, second = k, times[k], first
            elif times[k] < second:
                second = times[k]
        if first > target or first == math.inf:
            return -1
        horizon = horizons[0] = min(target, max(second + ahead, just_after(first)))
        if entries[place] == 0:
            return place
        state = _replica(addresses[place])
        state.horizon = horizon
        state.until_finish = True
        state.num_ended = 0
        if call_int(entries[place], addresses[place], command, most_steps) != DONE:
            return place
        times[place] = state.next_event_time
        if times[place] == first and first >= horizon:
            waits[place] = True
        if state.num_ended > 0:
            ended[place] = state.num_ended
            return place


def next_own_blocks(kv):
    return kv.request_blocks[kv.free_request_blocks[kv.num_free_request_blocks - 1]]


def copy_keys(source, target):
    """Copy a request's keys into the record that another replica's next admission takes."""
    for k in range(source.num_keys):
        target.keys[k] = source.keys[k]
    target.owner, target.num_keys = source.owner, source.num_keys
    target.segment, target.offset = source.segment, source.offset


def lacks_more(kv, own_blocks, num_tokens):
    """Return True if a pool lacks the block that follows the first ``num_tokens`` of a prompt.

    Its hit is then not longer. Pools with several groups, host tiers or drafts return False.
    """
    spec = kv.specs[0]
    if kv.num_groups != 1 or spec.kind != FULL or kv.pool.has_host:
        return False
    if kv.matches_partially or kv.drops_last_block:
        return False
    unit = (num_tokens // spec.block_size + 1) * (spec.block_size // kv.hash_block_size)
    if unit > own_blocks.num_keys:
        return True
    key, pool = own_blocks.keys[unit - 1], kv.pool
    k = pool.buckets[(key ^ spec.groups[0]) & pool.bucket_mask]
    while k != NONE and pool.blocks[k].key != key:
        k = pool.blocks[k].chain
    return k == NONE


def look_up(entries, addresses, command, request_id):
    """Return the longest cached prefix of a prompt on any replica, in tokens.

    The replicas have equal options. The first one computes the prompt's keys for all.
    """
    first = _replica(addresses[0]).kv
    shares = first.manager == PAGED
    most = 0
    for place in range(len(addresses)):
        if shares and place > 0:
            kv, known = _replica(addresses[place]).kv, next_own_blocks(first)
            own_blocks = next_own_blocks(kv)
            if known.owner == request_id:
                if own_blocks.owner != request_id or own_blocks.num_keys < known.num_keys:
                    copy_keys(known, own_blocks)
                if lacks_more(kv, own_blocks, most):
                    continue
        call_int(entries[place], addresses[place], command, request_id)
        most = max(most, _replica(addresses[place]).found_tokens)
    return most


def collect_lifecycle_events(addresses, seen, table, waits, tokens, lines, counts, news):
    """Write the first tokens and ends since the last call to ``news``; return their number.

    Parameters
    ----------
    seen : by replica: clock, and number of first tokens, at the last poll
    table : by request: finish reason, time of the first token, finish time
    waits : by request: the replica on which it waits for its first token, -1 for none
    tokens : scratch, by request
    lines : by replica the first and the last of its requests; by request the next one
    counts : by replica: its requests, and those without a first token
    news : times; is an end, request, replica
    """
    number = 0
    for place in range(len(addresses)):
        if addresses[place] != 0 and counts[place, 0] > 0:
            state = _replica(addresses[place])
            number = poll(state, place, seen, table, waits, tokens, lines, counts, news, number)
    return number


def poll(state, place, seen, table, waits, tokens, lines, counts, news, number):
    """Append a replica's lifecycle events since the last poll; return the number of rows."""
    if state.clock == seen[place, 0]:
        return number
    seen[place, 0] = state.clock
    left = counts[place, 0] - state.num_outstanding
    if left > 0:
        number = append_ends(place, left, state.clock, table, waits, lines, counts, news, number)
    if state.num_started != seen[place, 1]:
        most = min(counts[place, 1], state.num_started - max(seen[place, 1], 0))
        seen[place, 1] = state.num_started
        if most > 0:
            left = enter_tokens(state, place, waits, tokens, most)
            number = append_tokens(place, left, waits, tokens, lines, counts, news, number)
    return number


def send(waits, lines, counts, request_id, place):
    """Append a request, which waits for its first token, to the requests of a replica."""
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


def write(news, number, time, is_end, request_id, place):
    news[0][number] = time
    news[1][number, 0] = is_end
    news[1][number, 1] = request_id
    news[1][number, 2] = place
    return number + 1


def unlink(lines, place, before, row):
    """Remove a request from the list of a replica; ``before`` precedes it, or is negative."""
    firsts, lasts, afters = lines[0], lines[1], lines[2]
    after = afters[row]
    if before >= 0:
        afters[before] = after
    else:
        firsts[place] = after
    if after < 0:
        lasts[place] = before


def append_ends(place, left, clock, table, waits, lines, counts, news, number):
    """Append the ends of a replica's ``left`` ended requests; remove these from its list."""
    reasons, first_tokens, finishes = table
    before, at = -1, lines[0][place]
    while at >= 0 and left > 0:
        after = lines[2][at]
        if reasons[at] == IN_FLIGHT:
            before, at = at, after
            continue
        left -= 1
        end = clock if math.isnan(finishes[at]) else finishes[at]
        if waits[at] == place:
            waits[at] = -1
            counts[place, 1] -= 1
            first = end if math.isnan(first_tokens[at]) else first_tokens[at]
            number = write(news, number, first, 0, at, place)
        number = write(news, number, end, 1, at, place)
        counts[place, 0] -= 1
        unlink(lines, place, before, at)
        at = after
    return number


def enter_tokens(state, place, waits, tokens, most):
    """Enter new first tokens of waiting requests in ``tokens``; return their number.

    At most ``most`` requests got one since the last poll, usually the ones admitted last.
    """
    number = 0
    if not state.limits.has_own_loop:
        for at in range(state.num_running - 1, -1, -1):
            number += enter_token(state.requests[state.running[at]], place, waits, tokens)
            if number == most:
                return number
    for k in range(state.num_requests):  # some may have been preempted or have ended
        number += enter_token(state.requests[k], place, waits, tokens)
    return number


def enter_token(request, place, waits, tokens):
    """Enter a request's first token in ``tokens`` and return 1, or return 0 if it is not new."""
    if request.status == FINISHED or math.isnan(request.first_token_time):
        return 0  # a free record may name a request that was submitted again
    if waits[request.request_id] != place or not math.isnan(tokens[request.request_id]):
        return 0
    tokens[request.request_id] = request.first_token_time
    return 1


def append_tokens(place, left, waits, tokens, lines, counts, news, number):
    """Append an event per first token in ``tokens``, in the order of sending their requests."""
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
