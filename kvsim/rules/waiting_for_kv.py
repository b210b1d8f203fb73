"""The second waiting queue, vLLM's kv_holding_waiting: requests with blocks or with a load.

It is drained before the other waiting queue, regardless of priorities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.record import NONE
from kvsim.records.request import WAITING_FOR_REMOTE_KVS
from kvsim.rules.links import append, push_front, remove
from kvsim.rules.queue import dequeue, head_of, is_before, requeue

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def num_queued(state: Replica) -> int:
    """Return the number of requests in both queues, arrivals without a record included."""
    num_behind = state.trace.seen - state.trace.next
    if state.connector.kind == NO_CONNECTOR:
        return state.waiting.length + num_behind
    return state.waiting.length + state.connector.waiting_for_kv.length + num_behind


def next_in_line(state: Replica) -> int:
    """Return the request to admit next; one of the queues must not be empty."""
    if state.connector.kind != NO_CONNECTOR and state.connector.waiting_for_kv.length > 0:
        return state.connector.waiting_for_kv.head
    return head_of(state)


def remove_from_queue(state: Replica, k: int) -> None:
    if state.connector.kind != NO_CONNECTOR:
        row = state.requests[k].request_id
        if state.connector.is_waiting_for_kv[row]:
            state.connector.is_waiting_for_kv[row] = 0
            remove(state.connector.waiting_for_kv, state.requests, k)
            return
    dequeue(state, k)


def return_to_front(state: Replica, k: int) -> None:
    """Return a skipped request to the front of its queue."""
    request = state.requests[k]
    if state.connector.kind != NO_CONNECTOR and (
        request.num_computed_tokens > 0 or request.status == WAITING_FOR_REMOTE_KVS
    ):
        hold_back(state, k)
    else:
        requeue(state, k)


def hold_last(state: Replica, k: int) -> None:
    """Insert a request at the end of the second queue, or by its priority."""
    if state.limits.by_priority:
        hold_back(state, k)
        return
    state.connector.is_waiting_for_kv[state.requests[k].request_id] = 1
    append(state.connector.waiting_for_kv, state.requests, k)


def hold_back(state: Replica, k: int) -> None:
    """Insert a request at the front of the second queue, or by its priority."""
    held, requests = state.connector.waiting_for_kv, state.requests
    state.connector.is_waiting_for_kv[requests[k].request_id] = 1
    if not state.limits.by_priority or held.length == 0:
        push_front(held, requests, k)
        return
    later = held.head
    while later != NONE and is_before(state, later, k):
        later = requests[later].next
    if later == NONE:
        append(held, requests, k)
    elif requests[later].previous == NONE:
        push_front(held, requests, k)
    else:
        earlier = requests[later].previous
        requests[k].next = later
        requests[k].previous = earlier
        requests[earlier].next = k
        requests[later].previous = k
        held.length += 1
