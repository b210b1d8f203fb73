"""The waiting queue: by arrival, by priority, or by the service that tenants have received."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.fairness import DLPM, VTC
from kvsim.rules.links import append, push_front, remove
from kvsim.rules.own_order import update_rank
from kvsim.rules.vllm.dlpm import best_match
from kvsim.rules.vllm.fairness import dequeue_fair, enqueue_fair, fair_head, requeue_fair

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def is_before(state: Replica, k: int, other: int) -> bool:
    """Return True if request ``k`` is before ``other`` in a queue by priority (a total order).

    Equally urgent requests are ordered by id, compared as text because vLLM's ids are strings.
    """
    if is_more_urgent(state, k, other):
        return True
    if is_more_urgent(state, other, k):
        return False
    return state.requests[k].id_rank < state.requests[other].id_rank


def is_more_urgent(state: Replica, k: int, other: int) -> bool:
    """Return True if ``k`` has a lower priority number, or the same number and arrived earlier."""
    if state.limits.has_own_priority and state.ranks[k] != state.ranks[other]:
        return state.ranks[k] < state.ranks[other]
    a, b = state.requests[k], state.requests[other]
    if a.priority != b.priority:
        return a.priority < b.priority
    return a.arrival_time < b.arrival_time


def sift_up(state: Replica, place: int) -> None:
    """Move the heap's entry at an index towards the root until the heap is in order."""
    heap = state.heap
    while place > 0:
        parent = (place - 1) // 2
        if not is_before(state, heap[place], heap[parent]):
            return
        moved = heap[place]
        heap[place] = heap[parent]
        heap[parent] = moved
        place = parent


def sift_down(state: Replica, place: int) -> None:
    """Move the heap's entry at an index away from the root until the heap is in order."""
    heap, length = state.heap, state.waiting.length
    while True:
        least = place
        for child in range(2 * place + 1, min(2 * place + 3, length)):
            if is_before(state, heap[child], heap[least]):
                least = child
        if least == place:
            return
        moved = heap[place]
        heap[place] = heap[least]
        heap[least] = moved
        place = least


def enqueue(state: Replica, k: int) -> None:
    if state.limits.fairness == VTC:
        enqueue_fair(state, k)
    elif not state.limits.by_priority:
        append(state.waiting, state.requests, k)
    else:
        if state.limits.has_own_priority:
            update_rank(state, k)
        state.heap[state.waiting.length] = k
        state.waiting.length += 1
        sift_up(state, state.waiting.length - 1)


def reorder(state: Replica) -> None:
    """Reorder the waiting queue by the current results of a user's priority rule."""
    for place in range(state.waiting.length):
        update_rank(state, state.heap[place])
    for place in range(state.waiting.length // 2 - 1, -1, -1):
        sift_down(state, place)


def requeue(state: Replica, k: int) -> None:
    """Return a skipped or preempted request to the waiting queue, in front under FCFS."""
    if state.limits.fairness == VTC:
        requeue_fair(state, k)
    elif state.limits.by_priority:
        enqueue(state, k)
    else:
        push_front(state.waiting, state.requests, k)


def defer(state: Replica, request: Request) -> None:
    """Count a waiting request as skipped: later requests are admitted before it."""
    state.num_deferred += 1 - request.is_deferred
    request.is_deferred = 1


def head_of(state: Replica) -> int:
    """Return the next request to be admitted; the queue is not empty."""
    if state.limits.fairness == VTC:
        return fair_head(state)
    if state.limits.fairness == DLPM:
        return best_match(state)
    return state.heap[0] if state.limits.by_priority else state.waiting.head


def dequeue(state: Replica, k: int) -> None:
    """Remove a request from any position of the waiting queue."""
    if state.limits.fairness == VTC:
        dequeue_fair(state, k)
        return
    if not state.limits.by_priority:
        remove(state.waiting, state.requests, k)
        return
    state.waiting.length -= 1
    place, last = 0, state.waiting.length
    while state.heap[place] != k:
        place += 1
    state.heap[place] = state.heap[last]
    if place < last:
        sift_up(state, place)
        sift_down(state, place)
