"""Add records of requests to a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engines.registry import engine_by_policy
from kvsim.records.fairness import DLPM
from kvsim.records.memory import Objects, head
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED, Request

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory


def more_requests(state: Replica, memory: Memory, count: int) -> None:
    """Add ``count`` free records of requests; records in use keep their indices."""
    n = state.num_requests
    if memory.compiled:
        if n + count > len(state.requests):
            known = state.trace.num_arrivals - state.trace.next  # untouched records take no memory
            room: Any = memory.blank(Request, n + max(count, known))
            if n:
                room.array[:n] = state.requests[:n].array  # type: ignore[attr-defined]
            memory.replace(state, requests=room)
        unused: Any = state.requests[n : n + count]
        unused.array["status"], unused.array["request_id"] = FINISHED, NONE
    else:
        new = memory.records(Request, count)
        for request in new:
            request.status = FINISHED
        state.requests.extend(new)
    num_free, num_queued = state.num_free_requests, state.waiting.length
    free, heap = np.zeros(n + count, np.int64), np.zeros(n + count, np.int64)
    free[:num_free] = head(state.free_requests, num_free)
    free[num_free : num_free + count] = np.arange(n + count - 1, n - 1, -1)
    if state.limits.by_priority:
        heap[:num_queued] = head(state.heap, num_queued)
    ranks = np.zeros((n + count) * state.limits.has_own_priority)
    if state.limits.has_own_priority:
        ranks[:n] = head(state.ranks, n)
    arrays = free, heap, ranks
    lists = (memory.list_of(array if memory.compiled else array.tolist()) for array in arrays)
    memory.replace(state, free_requests=next(lists), heap=next(lists), ranks=next(lists))
    memory.replace(state, skipped=memory.ints(n + count), growing=memory.ints(n + count))
    state.num_growing = 0
    if state.limits.fairness == DLPM:  # recomputed in every step, so old values are not copied
        memory.replace(state.shares, matched=memory.ints(n + count))
    engine_by_policy(state.limits.scheduler).grow(state, memory, n, count)
    state.num_requests = n + count
    state.num_free_requests += count


def adopt(state: Replica, request: Request) -> int:
    """Add a request to a replica that consists of Python objects; return the request's index."""
    request.place = len(state.requests)
    state.requests.append(request)
    state.num_requests += 1
    engine_by_policy(state.limits.scheduler).grow(state, Objects(), state.num_requests - 1, 1)
    scratch = state.skipped, state.growing, state.shares.matched
    if state.limits.has_own_priority:
        state.ranks.append(0.0)
    for places in (state.heap, state.free_requests, *scratch):
        if isinstance(places, list):
            places.append(0)
    return request.place
