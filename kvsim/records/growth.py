"""Making room for more requests in a replica's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.records.request import FINISHED, Request

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory


def more_requests(state: Replica, memory: Memory, count: int) -> None:
    """Make ``count`` more records of requests, all free; those in use keep their places."""
    n = state.num_requests
    new: Any = memory.records(Request, n + count if memory.compiled else count)
    if memory.compiled:
        new.array["status"] = FINISHED
        if n:
            new.array[:n] = state.requests.array  # type: ignore[attr-defined]
        memory.replace(state, requests=new)
    else:
        for request in new:
            request.status = FINISHED
        state.requests.extend(new)
    heap, free = memory.ints(n + count), memory.ints(n + count)
    for place in range(state.waiting.length if state.limits.by_priority else 0):
        heap[place] = state.heap[place]
    for place in range(state.num_free_requests):
        free[place] = state.free_requests[place]
    for place in range(count):
        free[state.num_free_requests + place] = n + count - 1 - place
    memory.replace(state, heap=heap, free_requests=free)
    memory.replace(state, aside=memory.ints(n + count))
    state.num_requests = n + count
    state.num_free_requests += count


def adopt(state: Replica, request: Request) -> int:
    """Give a request that was made by hand a place; returns it. Python objects only."""
    request.place = len(state.requests)
    state.requests.append(request)
    state.num_requests += 1
    for scratch in (state.heap, state.aside, state.free_requests):
        if isinstance(scratch, list):
            scratch.append(0)
    return request.place
