"""Structured output: a request is skipped in the queue until its grammar is compiled."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.fairness import VTC
from kvsim.rules.queue import defer

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.queue import Queue
    from kvsim.records.request import Request


def await_grammar(state: Replica, request: Request) -> None:
    """Set the time at which a new request's grammar is compiled, and defer the request."""
    trace, row = state.trace, request.request_id
    if trace.has_grammar_times and trace.grammar_time[row] >= 0.0:
        trace.ready_time[row] = request.arrival_time + trace.grammar_time[row]
    if trace.ready_time[row] >= 0.0:
        defer(state, request)


def lacks_grammar(state: Replica, request: Request) -> bool:
    return state.trace.ready_time[request.request_id] > state.ready_clock


def first_ready(state: Replica) -> float:
    """Return the time at which the next grammar of a waiting request is compiled, or infinity."""
    if state.limits.fairness == VTC:
        first = math.inf
        for t in range(state.shares.num_tenants):
            first = min(first, first_ready_in(state, state.shares.tenants[t].queue))
        return first
    return first_ready_in(state, state.waiting)


def first_ready_in(state: Replica, queue: Queue) -> float:
    """As :func:`first_ready`, for one queue."""
    first, k = math.inf, queue.head
    for place in range(queue.length):
        if state.limits.by_priority:
            k = state.heap[place]
        if lacks_grammar(state, state.requests[k]):
            first = min(first, state.trace.ready_time[state.requests[k].request_id])
        k = state.requests[k].next
    return first
