"""Requests that end before their last token: client aborts and failed KV loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR, OFFLOADING
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED, RUNNING, WAITING_FOR_INPUT
from kvsim.rules.batch import recycle
from kvsim.rules.connector.scheduler import release
from kvsim.rules.kv import free_slots
from kvsim.rules.offloading.scheduler import record_end
from kvsim.rules.recorder import write_row
from kvsim.rules.vllm.encoder import release_all
from kvsim.rules.vllm.overload import is_limited, record_last_end
from kvsim.rules.waiting_for_kv import remove_from_queue

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request

#: How a request ended; see :class:`kvsim.results.tables.FinishReason`.
ENDED, REJECTED, IN_FLIGHT, ABORTED, FAILED = 0, 1, 2, 4, 5


def abort(state: Replica, row: int) -> bool:
    """Abort the request of a trace row; False if it has ended or is not on this replica."""
    for k in range(state.num_requests):
        request = state.requests[k]
        if request.request_id == row and request.status != FINISHED:
            end_early(state, k, ABORTED)
            return True
    return False


def end_early(state: Replica, k: int, reason: int) -> None:
    """End a request before it has all its tokens."""
    request = state.requests[k]
    if request.status == RUNNING:
        remove_from_running(state, k)
    else:
        remove_from_queue(state, k)
        state.num_deferred -= request.is_deferred
        if request.status == WAITING_FOR_INPUT:
            state.num_idle -= 1
    if request.own_blocks != NONE:
        free_early(state, request)
    request.finish_time = state.clock
    end_request(state, k, reason)
    recycle(state, k)
    reset_shortcuts(state)


def refuse_place(state: Replica, k: int) -> None:
    """Reject a new request that exceeds the front end's limits; it never counts as waiting."""
    request = state.requests[k]
    state.totals.num_turned_away += 1
    state.totals.waiting_seconds -= state.clock - request.arrival_time
    end_request(state, k, REJECTED)
    recycle(state, k)


def reset_shortcuts(state: Replica) -> None:
    """Reset the flags that let a step skip the queue or whole requests."""
    state.head_lookup_failed = False
    state.is_full = False
    state.refused = False
    state.decode_only = False
    state.connector.is_idle = False


def free_early(state: Replica, request: Request) -> None:
    """Free the KV memory of a request, unless a transfer still needs it."""
    if state.connector.kind != NO_CONNECTOR:
        release(state, request, False)
    else:
        free_slots(state.kv, request)


def remove_from_running(state: Replica, k: int) -> None:
    """Remove a request from the running list; the others keep their order."""
    kept = 0
    for place in range(state.num_running):
        other = state.running[place]
        if other != k:
            state.running[kept] = other
            kept += 1
    state.num_running = kept


def end_request(state: Replica, k: int, reason: int) -> None:
    """Record the end of a request and release its encoder items."""
    if state.limits.has_encoder:
        release_all(state, state.requests[k])
    state.requests[k].status = FINISHED
    state.num_outstanding -= 1
    state.num_ended += 1
    if is_limited(state) and reason != REJECTED:
        record_last_end(state, state.requests[k])
    if state.connector.kind == OFFLOADING:
        record_end(state, state.requests[k], reason == ABORTED)
    write_row(state, state.requests[k], reason)
