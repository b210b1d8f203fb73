"""One compiled loop over the arrivals of a fleet: replicas advance, and a router's rule chooses.

For a fleet with one gateway and a router with a rule, it replaces clients, gateway and clock.
It returns to the host for work that needs memory or Python.
"""

from __future__ import annotations

import math

from kvsim.compiled.key_table import name_path
from kvsim.compiled.live_blocks import depth_of, match_live, num_blocks
from kvsim.compiled.path_set import add_prompt, remove_prompt
from kvsim.compiled.recent_prompts import count_sent, forget_prompts, has_records, record_ends
from kvsim.compiled.replica_set import _replica, advance_due, look_up, poll, send
from kvsim.compiled.sent import bound_depths, record_sent
from kvsim.compiled.sent_index import has_room, insert, match_sent, shrink
from kvsim.compiled.translation.calls import call_int, record_at
from kvsim.records.routing import Placement
from kvsim.rules.blocks.keys import FIRST_KEY, mix
from kvsim.rules.engine import ADVANCE, LOOK_UP, NEXT_EVENT, QUIET
from kvsim.rules.routing.by_load import POINT
from kvsim.rules.routing.timing import last_scrape, next_eviction

#: Outcomes of a call: all arrivals are routed, or the host must do something: call again; advance a
#: replica without compiled rules; submit a request to a replica with a full list; draw random
#: words; enlarge the prefix index; enlarge the lists of prompts; refuse an invalid choice of the
#: rule.
DONE, LATER, ADVANCE_ONE, SUBMIT, DRAW, MAKE_ROOM, MAKE_PLACES, WRONG_CHOICE = range(8)
#: Sources of predicted hits: none, the requests that were sent, the replicas' pools and events.
NOTHING, SENT, LIVE = range(3)
#: Columns of ``moments``, in seconds: the last scrape, the time to advance to, the next eviction.
SCRAPED, TARGET, EVICTION = range(3)
#: Elements of ``loop``, the arguments of :func:`route`.
FLEET, ROUTER, TRACKER, EXPECTED, PROMPTS, KNOWN, INDEX, LIMITS, PATHS = range(9)
COUNTING, ARRIVALS, NOTED, SCRAPES, KINDS, CURSOR, MOMENTS, SCRATCH = range(9, 17)
#: Most random words that a choice may need.
FEWEST_WORDS = 64

_placement = record_at(Placement)


def write_keys(kv, row, path, lengths, rest):
    """Write a request's keys into the record of the next admission, as ``extend_keys`` does.

    The record then has the request's number, so another request that is admitted ignores the keys.
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


def submit(entry, address, room, row, now):
    """Submit a request to a replica; False if the replica's list of arrivals is full."""
    state = _replica(address)
    trace = state.trace
    if trace.num_arrivals >= room:
        return False
    trace.ids[trace.num_arrivals] = row
    trace.arrival_time[trace.num_arrivals] = now
    trace.num_arrivals += 1
    state.num_outstanding += 1
    call_int(entry, address, NEXT_EVENT, 0)
    return True


def is_known(state, place, seen, counts):
    """Return True if no request of a replica got a first token or ended since the last poll."""
    return state.num_outstanding == counts[place, 0] and state.num_started == seen[place, 1]


def num_rest(prompts, row, size):
    """Return 1 if a prompt's last block is partly filled, and so not shared, else 0."""
    return int(prompts[5][row] % size > 0)


def queued_seconds(place, seconds, waits, lines):
    """Return the sum of ``seconds`` of a replica's requests without a first token, in order."""
    total, at = 0.0, lines[0][place]
    while at >= 0:
        if waits[at] == place:
            total += seconds[at]
        at = lines[2][at]
    return total


def observe(placement, loop):
    """Update the candidates to the current state of the replicas that have advanced."""
    fleet, prompts, paths, told = loop[FLEET], loop[PROMPTS], loop[PATHS], loop[SCRATCH][2]
    size, watches = loop[KINDS][1], loop[KINDS][5]
    counts_misses, num_output_tokens = loop[COUNTING]
    _, addresses, times, _, _, heard, _, _ = fleet
    seen, table, waits, tokens, lines, counts = loop[TRACKER]
    uncached, seconds = loop[EXPECTED]
    follows, there, numbers = paths
    for place in range(len(addresses)):
        if times[place] == heard[place]:
            continue
        heard[place] = times[place]
        state, one = _replica(addresses[place]), placement.candidates[place]
        one.num_outstanding = state.num_outstanding
        if not watches or is_known(state, place, seen, counts):
            continue
        number = poll(state, place, seen, table, waits, tokens, lines, counts, told, 0)
        if number > 0 and len(seconds) > 0:
            one.queued_seconds = queued_seconds(place, seconds, waits, lines)
        for k in range(number):
            row = told[1][k, 1]
            if not told[1][k, 0]:
                one.num_uncached_tokens -= uncached[row]
                continue
            one.num_prompt_tokens -= prompts[5][row]
            if follows:
                one.num_blocks -= remove_prompt(prompts[:5], there, numbers, place, row, size)
                one.num_blocks -= num_rest(prompts, row, size)
        if number > 0 and counts_misses:
            record_ends(loop[ROUTER], place, told, number, table[1], num_output_tokens)


def scrape(placement, addresses, place, time):
    """Copy a replica's published metrics to its candidate."""
    state, one = _replica(addresses[place]), placement.candidates[place]
    one.as_of = time
    one.num_waiting = state.published_waiting
    one.num_running = state.published_running
    one.kv_usage = state.published_usage
    one.prompt_tokens = state.num_prompts_tokens
    one.generation_tokens = state.num_generated_tokens


def scrape_idle(placement, fleet, time):
    """Scrape replicas that have no further event since their last scrape."""
    addresses, times = fleet[1], fleet[2]
    for place in range(len(addresses)):
        if placement.candidates[place].as_of < time and times[place] == math.inf:
            scrape(placement, addresses, place, time)


def most_held(addresses, path, number):
    """Return the largest number of leading keys of a path that any replica's pool holds."""
    most = 0
    for place in range(len(addresses)):
        pool = _replica(addresses[place]).kv.pool
        if most < number and num_blocks(pool, path[most]) > 0:
            most = depth_of(pool, pool.log.num_events, path, number, most + 1)
    return most


def best_hit(held, fleet, is_simple, its, salt, block_size, row, prompt, blocks):
    """Return the longest current prefix hit of a prompt on any replica, in tokens.

    ``held`` is the most leading blocks of the prompt in any pool; negative if unknown.
    """
    entries, addresses = fleet[0], fleet[1]
    number = (prompt - 1) // block_size  # the last token is computed
    if held < 0 and not is_simple:
        return look_up(entries, addresses, LOOK_UP, row)
    if held < 0:
        name_path(its[0], its[1], its[2], block_size, FIRST_KEY, salt, blocks)
        held = most_held(addresses, blocks, number)
    return block_size * min(held, number)


def show_matches(placement, matched, number, size):
    """Set the predicted hits of the candidates from ``matched``, in entries of ``size`` tokens."""
    least, most = 0, 0
    for place in range(len(matched)):
        tokens = size * matched[place]
        placement.candidates[place].cached_tokens = tokens
        most = max(most, tokens)
        if tokens > 0 and (least == 0 or tokens < least):
            least = tokens
    placement.num_entries, placement.entry_tokens = number, size
    placement.least_held, placement.most_held = least, most


def show_sizes(placement, sizes):
    """Set the candidates' numbers of entries in the prefix index."""
    for place in range(len(sizes)):
        placement.candidates[place].num_entries = sizes[place]


def evict_due(index, moments, now, limits):
    """If an eviction is due, evict from the prefix trees that exceed their limit."""
    interval, most, target = limits[1], limits[2], limits[3]
    if interval <= 0 or now < moments[EVICTION]:
        return
    moments[EVICTION] = next_eviction(now, moments[EVICTION], interval)
    for place in range(len(index[7])):
        if index[7][place] > most:
            shrink(index, place, target)


def forget_look(loop, place):
    """Forget when a replica was last observed, so that it is observed anew."""
    loop[FLEET][5][place] = loop[SCRATCH][3][3][3][place] = math.nan


def reach(loop, time, steps, is_exact):
    """Advance all replicas to a time; False if the host must first advance one of them.

    Without ``is_exact``, a replica on which no request ends or gets its first token until later is
    left behind: it then computes more steps at once.
    """
    entries, addresses, times, ended, _, _, quiet, due = loop[FLEET]
    cursor, may_lag = loop[CURSOR], loop[KINDS][7]
    for place in range(len(times)):
        due[place] = math.inf
        if times[place] <= time and (is_exact or quiet[place] <= time):
            due[place], quiet[place] = times[place], -math.inf
            forget_look(loop, place)  # a step that ends at this time may not change its next event
    place = advance_due(entries, addresses, due, ended, cursor[1], time, ADVANCE, steps)
    for k in range(len(times)):
        if times[k] <= time and quiet[k] <= time:
            times[k] = due[k]
            if may_lag and k != place:
                call_int(entries[k], addresses[k], QUIET, 0)
                quiet[k] = _replica(addresses[k]).quiet_until
    cursor[1] = max(place, 0)
    loop[MOMENTS][TARGET] = time
    return place < 0


def scrape_if_due(placement, loop, before, now, steps):
    """Scrape all replicas if a scrape is due; False if the host must first advance one of them."""
    start, interval = loop[SCRAPES]
    moments = loop[MOMENTS]
    time = start + last_scrape(now, start, interval) * interval
    if time <= max(before, moments[SCRAPED]):
        return True
    if not reach(loop, time, steps, True):
        return False
    for place in range(len(loop[FLEET][1])):
        scrape(placement, loop[FLEET][1], place, time)
    moments[SCRAPED] = time
    return True


def largest(numbers):
    most = 0
    for place in range(len(numbers)):
        most = max(most, numbers[place])
    return most


def catch_up(placement, loop, before, now, steps):
    """Advance replicas and candidates to an arrival; return a reason to leave the loop, or LATER.

    ``before`` and ``now`` are the times of the last arrival and of this one.
    """
    start, interval = loop[SCRAPES]
    if placement.draws.num_words - placement.draws.next_word < FEWEST_WORDS:
        return DRAW
    if interval > 0 and not scrape_if_due(placement, loop, before, now, steps):
        return ADVANCE_ONE
    stride = loop[NOTED][3]
    is_exact = not loop[KINDS][7] or (stride > 0 and loop[CURSOR][0] % stride == 0)
    if not reach(loop, now, steps, is_exact):
        return ADVANCE_ONE
    observe(placement, loop)
    paths = loop[PATHS]
    if paths[0] and largest(paths[2]) == paths[1].shape[1]:
        return MAKE_PLACES
    if interval > 0:
        time = start + last_scrape(now, start, interval) * interval
        scrape_idle(placement, loop[FLEET], time)
    return LATER


def entries_of(is_read, its, size, salt, most, keys):
    """Return at most ``most`` keys of a prompt's entries; none if the router does not read them."""
    if not is_read:
        return keys[:0]
    return keys[: min(name_path(its[0], its[1], its[2], size, FIRST_KEY, salt, keys), most)]


def predict(placement, loop, its, path, now):
    """Set the candidates' predicted hits; return the most blocks that any pool holds, or -1."""
    fleet, index, source, size = loop[FLEET], loop[INDEX], loop[KINDS][0], loop[KINDS][1]
    logs, _, delay, sent = loop[KNOWN]
    matched, bounds, places, looked = loop[SCRATCH][3]
    held = -1
    if source == LIVE:
        bound_depths(sent, its[0], its[2], size, bounds)
        held = match_live(
            fleet[1], fleet[2], logs, now - delay, path, bounds, looked, matched, places
        )
    elif source == SENT:
        evict_due(index, loop[MOMENTS], now, loop[LIMITS])
        match_sent(index[0], index[1], path, matched)
        show_sizes(placement, index[7])
    if source != NOTHING:
        show_matches(placement, matched, len(path), size)
    return held


def describe(placement, row, prompt, path, num_pieces, sessions):
    """Write a request into the placement.

    Its ring key covers the session if the rule hashes sessions, or else the first entries of the
    prompt.
    """
    placement.request_id, placement.num_prompt_tokens = row, prompt
    if len(sessions) > 0:
        placement.ring_key = mix(POINT, sessions[row])
        return
    pieces = min(num_pieces, len(path))
    placement.ring_key = mix(POINT, path[pieces - 1] if pieces > 0 else row)


def record_choice(placement, loop, place, row):
    """Record the branch and predicted hit of a choice, and add the request to the candidate."""
    prompts, paths, tracker, kinds = loop[PROMPTS], loop[PATHS], loop[TRACKER], loop[KINDS]
    predicted, branches, one = loop[NOTED][0], loop[NOTED][2], placement.candidates[place]
    uncached, seconds = loop[EXPECTED]
    prompt, size = prompts[5][row], kinds[1]
    branches[row] = placement.branch
    uncached[row] = prompt
    if kinds[0] != NOTHING:
        predicted[row] = one.cached_tokens
        uncached[row] = prompt - min(one.cached_tokens, prompt)
    if len(seconds) > 0:
        seconds[row] = one.own_seconds
        one.queued_seconds += one.own_seconds
    if kinds[5]:
        one.num_prompt_tokens += prompt
        one.num_uncached_tokens += uncached[row]
        send(tracker[2], tracker[4], tracker[5], row, place)
    if paths[0]:
        one.num_blocks += add_prompt(prompts[:5], paths[1], paths[2], place, row, size)
        one.num_blocks += num_rest(prompts, row, size)


def enter_path(loop, place, row, its, path):
    """Record the replica of a prefix; if no request waits there, pass it the prefix's keys, too."""
    source, size = loop[KINDS][0], loop[KINDS][1]
    if source == SENT:
        index, limits = loop[INDEX], loop[LIMITS]
        insert(index, place, path, len(path), limits[0] < math.inf or limits[1] > 0)
        shrink(index, place, limits[0])
        if loop[COUNTING][0]:
            count_sent(loop[ROUTER], index, path, loop[NOTED][0][row], size)
    elif source == LIVE:
        record_sent(loop[KNOWN][3], its[0], loop[ARRIVALS][2][row], place)
        state = _replica(loop[FLEET][1][place])
        if state.num_outstanding == state.num_running:  # no other request waits
            write_keys(state.kv, row, path, its[2], loop[PROMPTS][5][row] % size)


def lacks_room(loop, number):
    """Return True if there is no memory for a number of further entries."""
    if loop[KINDS][0] != SENT:
        return False
    if loop[COUNTING][0] and not has_records(loop[ROUTER], number):
        return True
    return not has_room(loop[INDEX], number)


def route(loop, steps, most):
    """Route requests and advance replicas until the host is needed; return the reason.

    ``loop`` has the following elements, in this order.

    fleet : by replica: entry, address, next event, ended requests, capacity of the list of
        arrivals, the next event when it was last observed, a time before which no request ends or
        gets its first token, and scratch memory
    router : entry of the rule, address of its state, address of the placement
    tracker : see :func:`kvsim.compiled.replica_set.poll`
    expected : by request, the prompt tokens that were predicted as not cached, and the seconds
        until the first token of a request alone; no seconds if the rule predicts none
    prompts : content, start and length of all segments; by request the offset of its segments, its
        salt, its prompt tokens and, if the rule hashes it, its session
    known : number of known events of each log, guesses of hits, the delay of events, the replicas
        to which each content was sent
    index : the prefixes that were sent; see :mod:`kvsim.compiled.sent_index`
    limits : most entries of a replica; seconds between evictions (0: none); number of entries above
        which a tree is shrunk; number to which it is shrunk
    paths : 1 if the prompts on each replica are tracked, these prompts, and their number by replica
    counting : 1 if the rule counts misses; by request: its output tokens once it has ended
    arrivals : requests in order, their times, the contents of their outputs, the time before the
        first one
    noted : by request: predicted hit, best hit and branch; N if the best hit is computed for every
        N-th request, 0 for none
    scrapes : time of the first scrape, and seconds between scrapes, 0 for none
    kinds : source of predicted hits, tokens of an entry, most entries of a prompt, tokens of a
        block, 1 if pools can be read directly, 1 if requests are tracked, entries that a hash ring
        reads, 1 if replicas may be left behind
    cursor : the next arrival, the replica from which to advance, a value for the host, and the
        replica of the last arrival
    moments : times, by the columns ``SCRAPED``, ``TARGET`` and ``EVICTION``
    scratch : memory for the keys of a prompt's entries and blocks, for what ``poll`` tells, and for
        ``predict``: by replica matches and their bounds, replicas, and the arrays ``looked`` of
        :func:`kvsim.compiled.live_blocks.match_live`, with no known times

    Parameters
    ----------
    loop : see above
    steps, most : most steps of a replica, and most arrivals, before a return to the host
    """
    fleet, router, cursor = loop[FLEET], loop[ROUTER], loop[CURSOR]
    entries, addresses, times, _, rooms, _, quiet, _ = fleet
    contents, starts, lengths, offsets, salts, num_prompt_tokens, sessions = loop[PROMPTS]
    rows, planned, _, start = loop[ARRIVALS]
    predicted, best, _, stride = loop[NOTED]
    source, size, most_entries, block_size, is_simple, _, num_pieces, _ = loop[KINDS]
    placement = _placement(router[2])
    last = min(cursor[0] + most, len(rows))
    keys, blocks = loop[SCRATCH][0], loop[SCRATCH][1]
    while cursor[0] < last:
        at = cursor[0]
        row, now, before = rows[at], planned[at], planned[at - 1] if at > 0 else start
        outcome = catch_up(placement, loop, before, now, steps)
        if outcome != LATER:
            return outcome
        if loop[COUNTING][0]:
            forget_prompts(
                router, loop[INDEX], loop[PROMPTS], rows, planned, predicted, size, at, now, blocks
            )
        first, stop, prompt = offsets[row], offsets[row + 1], num_prompt_tokens[row]
        its = contents[first:stop], starts[first:stop], lengths[first:stop]
        is_read = source != NOTHING or num_pieces > 0
        path = entries_of(is_read, its, size, salts[row], most_entries, keys)
        if lacks_room(loop, len(path)):
            cursor[2] = len(path)
            return MAKE_ROOM
        held = predict(placement, loop, its, path, now)
        if stride > 0 and at % stride == 0:
            salt = salts[row]
            best[row] = best_hit(held, fleet, is_simple, its, salt, block_size, row, prompt, blocks)
        describe(placement, row, prompt, path, num_pieces, sessions)
        place = call_int(router[0], router[1], router[2], 0)
        if place < 0 or place >= len(addresses):
            cursor[2] = place
            return WRONG_CHOICE
        record_choice(placement, loop, place, row)
        forget_look(loop, place)  # it may be idle again at the next observation
        quiet[place] = -math.inf
        cursor[0] += 1
        cursor[3] = place
        enter_path(loop, place, row, its, path)
        if not submit(entries[place], addresses[place], rooms[place], row, now):
            cursor[2] = place
            return SUBMIT
        times[place] = _replica(addresses[place]).next_event_time
    return DONE if last == len(rows) else LATER
