"""One compiled loop over clients that wait for answers, and the replicas that serve them.

For a fleet that the loop over arrivals supports, it replaces clients, gateway and clock if requests
wait for others: their times are known only when these have been sent or have ended. It does what
``Clients``, ``FleetClock`` and ``Fleet`` do, in the same order, and routes each request by
:func:`kvsim.compiled.arrival_loop.route`.
"""

from __future__ import annotations

import math

from kvsim.compiled.arrival_loop import (
    ARRIVALS,
    CURSOR,
    DONE,
    FLEET,
    LATER,
    ROUTER,
    SCRAPES,
    SUBMIT,
    TRACKER,
    _placement,
    forget_look,
    route,
    scrape,
)
from kvsim.compiled.replica_set import _replica, advance_in_turn, just_after, unlink
from kvsim.rules.abort import IN_FLIGHT
from kvsim.rules.engine import ADVANCE
from kvsim.rules.routing.timing import last_scrape

#: One more outcome of a call: the host must continue a replica that needs it.
GO_ON = 8
#: What the loop does next: find the next event of this time; send the requests on the stack; handle
#: what the sending of a request allows; choose a time to advance to; advance; handle the ends on a
#: replica.
NEXT, SEND, SENT, AIM, ADVANCING, ENDS = range(6)
#: Columns of ``numbers``: the above; events in the queue, and ever; pauses in their queue; requests
#: on the stack; planned requests that have come; 1 while planned requests come; requests sent; the
#: last request sent.
STAGE, EVENTS, EVER, PAUSES, STACKED, PLANNED, COMING, NUM_SENT, LAST = range(9)
#: Columns of ``instants``, seconds: now; the last scrape; the time to advance to; the scrape and
#: the event that set it; the least time from an end to its effect; the last replica's horizon.
NOW, LOOKED, GOAL, LOOK, LIMIT, AHEAD, HORIZON = range(7)
#: The event at which planned requests come.
PLAN = -1


def goes_before(times, orders, one, other):
    return times[one] < times[other] or (times[one] == times[other] and orders[one] < orders[other])


def swap(values, one, other):
    values[one], values[other] = values[other], values[one]


def push(queue, number, time, order, item):
    """Add an item to a queue of ``number`` items, the first in time and then in order first."""
    times, orders, items = queue
    times[number], orders[number], items[number] = time, order, item
    at = number
    while at > 0 and goes_before(times, orders, at, (at - 1) // 2):
        parent = (at - 1) // 2
        swap(times, at, parent)
        swap(orders, at, parent)
        swap(items, at, parent)
        at = parent


def pop(queue, number):
    """Remove the first of ``number`` items of a queue, and return it."""
    times, orders, items = queue
    found, last = items[0], number - 1
    times[0], orders[0], items[0] = times[last], orders[last], items[last]
    at, least = -1, 0
    while least != at:
        at = least
        for child in range(2 * at + 1, min(2 * at + 3, last)):
            if goes_before(times, orders, child, least):
                least = child
        if least != at:
            swap(times, at, least)
            swap(orders, at, least)
            swap(items, at, least)
    return found


def push_event(numbers, events, time, item):
    push(events, numbers[EVENTS], time, numbers[EVER], item)
    numbers[EVENTS] += 1
    numbers[EVER] += 1


def next_event(numbers, events):
    return events[0][0] if numbers[EVENTS] > 0 else math.inf


def stack_up(numbers, stack, time, row):
    stack[0][numbers[STACKED]] = time
    stack[1][numbers[STACKED]] = row
    numbers[STACKED] += 1


def happen(waits, code, now, ready):
    """Record that a request has been sent or has ended; return the number of now ready requests.

    ``code`` is the request, or for a sending the request plus the number of requests. Requests that
    only waited for it are written to ``ready``.
    """
    offsets, rows, num_left, is_due, ready_time = waits[:5]
    number = 0
    for at in range(offsets[code], offsets[code + 1]):
        row = rows[at]
        num_left[row] -= 1
        ready_time[row] = max(ready_time[row], now)
        if is_due[row] and num_left[row] == 0:
            ready[number] = row
            number += 1
    return number


def end_request(numbers, events, waits, flying, ready, row, time):
    """Notify the clients of the end of a request at a time."""
    flying[row] = False
    number = happen(waits, row, just_after(time), ready)
    for k in range(number):
        later = ready[k]
        push_event(numbers, events, waits[4][later] + waits[5][later], later)


def follow(members, place, row):
    """Append a request to those of a replica."""
    firsts, lasts, afters, counts = members
    if lasts[place] < 0:
        firsts[place] = row
    else:
        afters[lasts[place]] = row
    lasts[place], afters[row] = row, -1
    counts[place] += 1


def leave_ended(members, place, left, reasons, gone):
    """Remove a replica's ``left`` ended requests, written to ``gone`` in the order of sending."""
    before, at, number = -1, members[0][place], 0
    while at >= 0 and number < left:
        after = members[2][at]
        if reasons[at] == IN_FLIGHT:
            before, at = at, after
            continue
        gone[number] = at
        number += 1
        unlink(members, place, before, at)
        at = after
    members[3][place] -= number
    return number


def least_pause(numbers, pauses, flying):
    """Return the least time from the end of a request in flight until another one is sent."""
    while numbers[PAUSES] > 0 and not flying[pauses[2][0]]:
        pop(pauses, numbers[PAUSES])
        numbers[PAUSES] -= 1
    return pauses[0][0] if numbers[PAUSES] > 0 else math.inf


def next_look(numbers, instants, scrapes, limit, ahead, number):
    """Return the next time up to a limit at which replicas must be scraped, or infinity.

    If an end may affect another replica sooner than a scrape interval later, that is the next
    scrape, else the last one up to the limit.
    """
    start, interval = scrapes
    every = ahead <= 0.0
    if interval <= 0.0 or numbers[NUM_SENT] == number or (limit == math.inf and not every):
        return math.inf
    since = max(instants[NOW], instants[LOOKED])
    if every:
        time = start + (last_scrape(since, start, interval) + 1) * interval
    else:
        time = start + last_scrape(limit, start, interval) * interval
    return time if since < time <= limit else math.inf


def is_idle(times):
    """Return True if no replica has an event of its own."""
    first = math.inf
    for place in range(len(times)):
        first = min(first, times[place])
    return first == math.inf


def aim(numbers, instants, scrapes, events, pauses, flying, times, waiting):
    """Set the time to advance to; False if nothing is left to happen."""
    limit = next_event(numbers, events)
    if limit == math.inf and is_idle(times):
        return False
    ahead = max(least_pause(numbers, pauses, flying) - scrapes[1], 0.0)
    look = next_look(numbers, instants, scrapes, limit, ahead, len(flying))
    instants[LIMIT], instants[LOOK], instants[AHEAD] = limit, look, ahead
    instants[GOAL] = min(limit, look)
    for place in range(len(waiting)):
        waiting[place] = False
    numbers[STAGE] = ADVANCING
    return True


def arrive(numbers, instants, scrapes, placement, fleet):
    """Handle that all replicas have reached the goal; False if nothing is left to happen."""
    look, limit = instants[LOOK], instants[LIMIT]
    if look <= limit and look < math.inf:
        instants[LOOKED] = look
        start, interval = scrapes
        if start + last_scrape(look, start, interval) * interval == look:
            for place in range(len(fleet[1])):
                scrape(placement, fleet[1], place, look)
        numbers[STAGE] = AIM
        return True
    if limit == math.inf:
        return False
    instants[NOW], numbers[STAGE] = limit, NEXT
    return True


def find_next(numbers, instants, events, stack, waits, planned):
    """Put the next requests of this time on the stack; if there are none, replicas advance."""
    now, rows = instants[NOW], planned[0]
    if numbers[COMING]:
        at = numbers[PLANNED]
        if at == len(rows):
            numbers[COMING] = 0
        elif planned[1][at] > now:
            numbers[COMING] = 0
            push_event(numbers, events, planned[1][at], PLAN)
        else:
            row = rows[at]
            numbers[PLANNED] += 1
            waits[3][row] = True
            if waits[2][row] == 0:
                stack_up(numbers, stack, waits[4][row] + waits[5][row], row)
                numbers[STAGE] = SEND
    elif next_event(numbers, events) > now:
        numbers[STAGE] = AIM
    else:
        row = pop(events, numbers[EVENTS])
        numbers[EVENTS] -= 1
        if row == PLAN:
            numbers[COMING] = 1
        else:
            stack_up(numbers, stack, now, row)
            numbers[STAGE] = SEND


def send_first(numbers, instants, events, stack, pauses, flying, waits, sent_time):
    """Take a request from the stack; if its time has come, record it as sent."""
    if numbers[STACKED] == 0:
        numbers[STAGE] = NEXT
        return
    numbers[STACKED] -= 1
    time, row = stack[0][numbers[STACKED]], stack[1][numbers[STACKED]]
    if time > instants[NOW]:
        push_event(numbers, events, time, row)
        return
    numbers[NUM_SENT] += 1
    numbers[LAST] = row
    sent_time[row] = instants[NOW]
    flying[row] = True
    push(pauses, numbers[PAUSES], waits[6][row], row, row)
    numbers[PAUSES] += 1


def handle_sent(numbers, instants, stack, waits, ready):
    """Put the requests that only waited for the sending of the last one on the stack."""
    number = happen(waits, numbers[LAST] + len(ready), instants[NOW], ready)
    for k in range(number - 1, -1, -1):
        later = ready[k]
        stack_up(numbers, stack, waits[4][later] + waits[5][later], later)
    numbers[LAST], numbers[STAGE] = -1, SEND


def handle_ends(numbers, instants, events, waits, flying, ready, members, gone, place, facts):
    """Notify the clients of the ends on a replica; advance on, or aim anew for an earlier event."""
    addresses, reasons = facts
    state = _replica(addresses[place])
    left = members[3][place] - state.num_outstanding
    number = leave_ended(members, place, left, reasons, gone)
    for k in range(number):
        end_request(numbers, events, waits, flying, ready, gone[k], state.clock)
    earlier = next_event(numbers, events) < instants[GOAL]
    numbers[STAGE] = AIM if earlier else ADVANCING


def advance(numbers, instants, fleet, waiting, news, cursor, scrapes, placement, steps):
    """Advance the replicas until requests end, or all reach the goal; DONE if all is done."""
    entries, addresses, times, ended = fleet[:4]
    goal, ahead = instants[GOAL], instants[AHEAD]
    horizons = instants[HORIZON:]
    place = advance_in_turn(
        entries, addresses, times, news, waiting, horizons, goal, ahead, ADVANCE, steps
    )
    cursor[1] = max(place, 0)
    if place < 0:
        return LATER if arrive(numbers, instants, scrapes, placement, fleet) else DONE
    numbers[STAGE] = ENDS
    if news[place] == 0:
        return GO_ON
    ended[place] += news[place]
    news[place] = 0
    return LATER


def serve_clients(loop, clients, steps, most):
    """Serve clients until the host is needed; return the reason.

    Parameters
    ----------
    loop : see :func:`kvsim.compiled.arrival_loop.route`; its columns of requests are filled in the
        order of sending
    clients : the columns ``numbers`` and ``instants``; queues of events and of pauses, each with
        times, orders and items; the stack of times and rows; what requests wait for: offsets and
        rows by event, and by request the number of events left, 1 if it is due, the time of the
        last event, seconds after it, and seconds until the first request after its end; planned
        requests and their times; by request: 1 if it is in flight, its send time, 1 if it can be
        served; scratch by request, twice; the requests of each replica as a list: first, last, next
        and their number; by replica: 1 if it can only start a step at the goal, and its ends
    steps, most : most steps of a replica, and most arrivals, before a return to the host
    """
    fleet, arrivals, scrapes, cursor = loop[FLEET], loop[ARRIVALS], loop[SCRAPES], loop[CURSOR]
    numbers, instants, events, pauses, stack, waits, planned, requests, scratch = clients[:9]
    members, waiting, news = clients[9], clients[10], clients[11]
    flying, sent_time, can_be_served = requests
    ready, gone = scratch
    placement, facts = _placement(loop[ROUTER][2]), (fleet[1], loop[TRACKER][1][0])
    until = cursor[0] + most
    while cursor[0] < until:
        stage = numbers[STAGE]
        if stage == NEXT:
            find_next(numbers, instants, events, stack, waits, planned)
        elif stage == SEND and numbers[LAST] < 0:
            send_first(numbers, instants, events, stack, pauses, flying, waits, sent_time)
        elif stage == SEND and not can_be_served[numbers[LAST]]:
            end_request(numbers, events, waits, flying, ready, numbers[LAST], instants[NOW])
            numbers[STAGE] = SENT
        elif stage == SEND:
            at = cursor[0]
            arrivals[0][at], arrivals[1][at] = numbers[LAST], instants[NOW]
            for place in range(len(fleet[1])):
                forget_look(loop, place)
            outcome = route(loop, steps, 1)
            if cursor[0] == at:
                return outcome
            follow(members, cursor[3], numbers[LAST])
            numbers[STAGE] = SENT
            if outcome == SUBMIT:
                return outcome
        elif stage == SENT:
            handle_sent(numbers, instants, stack, waits, ready)
        elif stage == AIM:
            if not aim(numbers, instants, scrapes, events, pauses, flying, fleet[2], waiting):
                return DONE
        elif stage == ADVANCING:
            outcome = advance(
                numbers, instants, fleet, waiting, news, cursor, scrapes, placement, steps
            )
            if outcome != LATER:
                return outcome
        else:
            place = cursor[1]
            handle_ends(
                numbers, instants, events, waits, flying, ready, members, gone, place, facts
            )
    return LATER
