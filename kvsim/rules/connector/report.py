"""The connector's report with a step's output: loads and sends that ended, and failed loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR, OFFLOADING, RECEIVED, STARTED
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED
from kvsim.rules.abort import FAILED, end_early
from kvsim.rules.batch import recycle
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.connector.pinned import lift_fences
from kvsim.rules.connector.scheduler import free_ended
from kvsim.rules.offloading.scheduler import report_copies
from kvsim.rules.recorder import pass_time

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def begin_update(state: Replica, batch: Batch) -> None:
    """Before a step's output: lift the fences that wait for the step, and process failed loads."""
    connector = state.connector
    connector.is_idle = False
    connector.num_failed = 0
    if batch.size > 0:
        lift_fences(state, batch.number)
    if connector.kind == OFFLOADING:
        report_copies(state, batch.end if state.offloading.timed else float(batch.call))
    for at in range(connector.num_bad_requests):
        row = connector.bad_requests[at]
        if connector.load[row] == STARTED:
            fail(state, connector.place[row], 0)
    if connector.num_bad_blocks > 0:
        cut_loading(state)
        cut_running(state)
    connector.num_bad_requests = 0
    connector.num_bad_blocks = 0


def resume(state: Replica) -> None:
    """Resume after a report of the host; a replica that waited for it continues at the horizon."""
    if state.connector.is_idle and state.num_batches == 0:
        pass_time(state, state.horizon)
    state.connector.is_idle = False


def fail(state: Replica, k: int, num_tokens: int) -> None:
    """Record that KV of a request after its first ``num_tokens`` tokens failed to load."""
    connector, request = state.connector, state.requests[k]
    if request.status == FINISHED:
        return
    if connector.recomputes:
        request.num_computed_tokens = num_tokens
    else:
        connector.failed[connector.num_failed] = k
        connector.num_failed += 1


def mark_bad(state: Replica, mark: int) -> None:
    """Set the marks of the blocks that failed to load to 1 or 0."""
    connector = state.connector
    for at in range(connector.num_bad_blocks):
        connector.is_marked[connector.bad_blocks[at]] = mark


def first_bad(state: Replica, k: int, num_blocks: int) -> int:
    """Return the index of a request's first bad block, or NONE, and unmark its bad blocks.

    Later requests that share the blocks then count them as good: this request recomputes them.
    """
    connector, found = state.connector, NONE
    table = state.kv.request_blocks[state.requests[k].own_blocks].tables[0]
    for place in range(min(num_blocks, table.length)):
        if connector.is_marked[table.blocks[place]]:
            connector.is_marked[table.blocks[place]] = 0
            if found == NONE:
                found = place
    return found


def cut_loading(state: Replica) -> None:
    """Cut the loading requests at their first bad block, in the order of their queue."""
    connector, size = state.connector, state.kv.groups[0].block_size
    mark_bad(state, 1)
    k = connector.waiting_for_kv.head
    while k != NONE:
        row, behind = state.requests[k].request_id, state.requests[k].next
        if connector.load[row] == STARTED:
            num_blocks = cdiv(state.requests[k].num_computed_tokens, size)
            place = first_bad(state, k, num_blocks)
            if place != NONE:
                fail(state, k, place * size)
        k = behind
    mark_bad(state, 0)


def cut_running(state: Replica) -> None:
    """Cut the running requests at their first bad block; this step gives them no token."""
    connector, size = state.connector, state.kv.groups[0].block_size
    mark_bad(state, 1)
    for at in range(state.num_running):
        k = state.running[at]
        num_blocks = cdiv(state.requests[k].num_computed_tokens, size)
        place = first_bad(state, k, num_blocks)
        if place != NONE:
            fail(state, k, place * size)
            connector.skips[state.requests[k].request_id] = 1
            connector.has_skips = True
    mark_bad(state, 0)


def end_update(state: Replica) -> None:
    """After a step's output: end requests with failed loads, then record ended loads and sends."""
    connector = state.connector
    if connector.has_skips:
        connector.has_skips = False
        for at in range(state.num_running):
            connector.skips[state.requests[state.running[at]].request_id] = 0
    for at in range(connector.num_failed):
        if state.requests[connector.failed[at]].status != FINISHED:
            end_early(state, connector.failed[at], FAILED)
    record_received(state)
    for at in range(connector.num_sent):
        row = connector.sent[at]
        if connector.is_pinned[row]:
            free_pinned(state, connector.place[row])
    connector.num_sent = 0


def record_received(state: Replica) -> None:
    """Record the loads that have ended."""
    connector = state.connector
    for at in range(connector.num_received):
        row = connector.received[at]
        if connector.is_pinned[row]:  # the request has ended meanwhile
            free_pinned(state, connector.place[row])
        elif connector.load[row] == STARTED:
            connector.load[row] = RECEIVED
    connector.num_received = 0


def process_copies(state: Replica) -> None:
    """Process the copies that ended while no step was in flight."""
    report_copies(state, state.clock)
    record_received(state)


def drop_pinned(state: Replica, row: int) -> bool:
    """Free the pinned blocks of an ended request at once; False if it has none."""
    connector = state.connector
    if connector.kind == NO_CONNECTOR or not connector.is_pinned[row]:
        return False
    free_pinned(state, connector.place[row])
    connector.is_idle = False
    state.decode_only = False
    return True


def free_pinned(state: Replica, k: int) -> None:
    """Free the pinned blocks of an ended request, and its record."""
    free_ended(state, state.requests[k])
    recycle(state, k)
    state.head_lookup_failed = False
    state.is_full = False
