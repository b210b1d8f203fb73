"""External KV: the tokens that a connector offers, and their use by vLLM's scheduler.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import (
    FAKE,
    NO_LOAD,
    OFFLOADING,
    RECEIVED,
    SESSIONS,
    STARTED,
    UNKNOWN,
)
from kvsim.records.record import NONE
from kvsim.records.request import PREEMPTED, WAITING, WAITING_FOR_REMOTE_KVS
from kvsim.rules.blocks.prefix import find_by_attention
from kvsim.rules.blocks.window import drop_out_of_window
from kvsim.rules.connector.loading import (
    admit_loaded,
    allocate_external,
    name_loaded,
    reserved_blocks,
)
from kvsim.rules.connector.pinned import free_or_fence, pin_request, unpin_request
from kvsim.rules.connector.prefills import begin_prefill, end_prefill, end_prefills
from kvsim.rules.kv import admit_slots, allocate_own_blocks, free_slots, next_own_blocks
from kvsim.rules.offloading.scheduler import (
    begin_load,
    has_copies,
    query_chunks,
    schedule_stores,
)
from kvsim.rules.vllm.reading import read_cache, skips_reading
from kvsim.rules.vllm.replay import num_replayed

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


#: Number of times that a request running alone may preempt itself without progress before it waits
#: for the host. vLLM's scheduler never waits, but a few attempts reproduce the recorded schedules.
MOST_IN_VAIN = 8


def begin_connected(state: Replica) -> None:
    state.connector.num_loads = 0


def record_connected(state: Replica, batch: Batch) -> None:
    """Number the step just scheduled, end the prompts that it completes, and schedule stores."""
    if batch.size > 0:
        state.connector.num_steps += 1
        batch.number = state.connector.num_steps
    batch.call = state.num_calls
    end_prefills(state, batch)
    if state.connector.kind == OFFLOADING and not state.offloading.timed:
        schedule_stores(state, batch)


# -- admission ------------------------------------------------------------------------------------


def query_connector(state: Replica, request: Request, hit: int) -> int:
    """Return the number of tokens that the connector has after a hit in the pool, or UNKNOWN.

    Sets ``connector.is_async``: the tokens arrive after the step.
    """
    if state.connector.kind == FAKE:
        return query_host(state, request, hit)
    if state.connector.kind == SESSIONS:
        return 0
    return query_chunks(state, request, next_own_blocks(state.kv), hit)


def query_host(state: Replica, request: Request, hit: int) -> int:
    """Return the number of tokens after a hit that the host has offered, or UNKNOWN."""
    connector, row = state.connector, request.request_id
    if connector.num_unknown[row] > 0:
        connector.num_unknown[row] -= 1
        return UNKNOWN
    connector.is_async = connector.is_sync[row] == 0
    external = max(connector.offered[row] - hit, 0)
    return external if external >= connector.threshold else 0


def after_allocation(state: Replica, request: Request) -> None:
    """Notify the connector that a waiting request has been allocated its blocks."""
    if request.num_preemptions == 0:  # vLLM counts preempted requests separately
        state.totals.num_external_queries += state.connector.num_queried
        state.totals.num_external_tokens += state.connector.external
    if state.connector.kind == FAKE:
        notify_host(state, request)
    elif state.connector.external > 0:
        begin_load(state, request)


def notify_host(state: Replica, request: Request) -> None:
    """Report to the host, once per request, the number of its offered tokens that are loaded."""
    connector, row = state.connector, request.request_id
    if connector.offered[row] == 0:
        return
    connector.offered[row] = 0
    connector.begun[connector.num_begun] = row
    connector.begun_tokens[connector.num_begun] = connector.external
    connector.begun_times[connector.num_begun] = max(state.clock, state.stage_free_time)
    connector.num_begun += 1


def find_attention(state: Replica, request: Request) -> int:
    """Return a hit on the GPU whose states offloading may load, or NONE."""
    kv = state.kv
    if not kv.has_states or state.connector.kind != OFFLOADING or skips_reading(state, request):
        return NONE
    return find_by_attention(kv, request, next_own_blocks(kv))


def find_computed(state: Replica, request: Request) -> int:
    """Return the number of tokens of a waiting request that need no computation, or UNKNOWN.

    Sets ``connector.hit`` and ``external``, which sum to this number, and ``is_async``.
    """
    connector = state.connector
    connector.external = 0
    connector.num_queried = 0
    connector.is_async = False
    if request.num_computed_tokens > 0 or request.own_blocks != NONE:  # it already has KV or blocks
        return request.num_computed_tokens
    hit = find_attention(state, request)
    ahead = hit != NONE
    if not ahead:
        hit = read_cache(state, request)
    tail = hit % connector.block_size
    external = query_connector(state, request, hit - tail)
    if skips_reading(state, request):
        external = 0  # even if the connector has tokens
    if external == UNKNOWN:
        connector.is_async = False
        return UNKNOWN
    if ahead and external == 0:
        hit = read_cache(state, request)
        tail = 0
    if tail > 0:
        if external > tail:
            hit -= tail
        else:
            external = 0
    if state.kv.replay_window > 0:  # loaded KV does not restore windows: whole blocks only
        external -= external % connector.block_size
    connector.is_async = connector.is_async and external > 0
    connector.hit = hit
    connector.external = external
    connector.num_queried = request.num_tokens - hit
    return hit + external


def admit_connected(state: Replica, request: Request, num_tokens: int) -> bool:
    """Allocate slots for the first tokens that a request computes; False if there is no room."""
    kv, connector = state.kv, state.connector
    if request.own_blocks != NONE:
        admitted = admit_loaded(state, request, num_tokens)
    elif connector.external > 0:
        admitted = allocate_external(state, request, next_own_blocks(kv), num_tokens, 0)
        if admitted:
            allocate_own_blocks(kv, request)
            note_load(state, request)
    else:
        admitted = admit_slots(kv, request, num_tokens, connector.hit)
    if admitted:
        after_allocation(state, request)
    return admitted


def start_load(state: Replica, k: int) -> bool:
    """Allocate the blocks of an asynchronous load and start it; False if there is no room."""
    connector, kv, request = state.connector, state.kv, state.requests[k]
    if not allocate_external(state, request, next_own_blocks(kv), 0, reserved_blocks(state)):
        return False
    allocate_own_blocks(kv, request)
    pin_request(kv, request)
    request.num_computed_tokens = connector.hit + connector.external
    request.status = WAITING_FOR_REMOTE_KVS
    connector.place[request.request_id] = k
    connector.load[request.request_id] = STARTED
    begin_prefill(state, k)
    note_load(state, request)
    after_allocation(state, request)
    state.totals.num_loads += 1
    return True


def note_load(state: Replica, request: Request) -> None:
    """Record that a request loads with the step being scheduled."""
    state.connector.loads[state.connector.num_loads] = request.place
    state.connector.num_loads += 1


def promote(state: Replica, request: Request) -> bool:
    """Set the status of a loading request to waiting after its load; False if it still loads.

    If the whole load failed, the request frees its blocks and starts over.
    """
    connector, row = state.connector, request.request_id
    if connector.load[row] != RECEIVED:
        return False
    connector.load[row] = NO_LOAD
    request.status = PREEMPTED if request.num_preemptions > 0 else WAITING
    if request.num_computed_tokens == 0:
        unpin_request(state.kv, request, 0)
        free_slots(state.kv, request)
        end_prefill(state, request.place)
        return True
    name_loaded(state.kv, request, request.num_computed_tokens)
    if state.kv.replay_window > 0:
        request.num_computed_tokens -= num_replayed(state.kv, request.num_computed_tokens)
    elif request.num_computed_tokens == request.num_tokens:
        request.num_computed_tokens -= 1  # the last token is computed, to sample from it
    return True


# -- the end --------------------------------------------------------------------------------------


def release(state: Replica, request: Request, complete: bool) -> None:
    """Free the blocks of a request that ends, or pin them if a transfer still needs them.

    ``complete``: the request has all its tokens, so another replica may read its KV.
    """
    connector, kv, row = state.connector, state.kv, request.request_id
    if connector.kind == SESSIONS:
        if kv.request_blocks[request.own_blocks].retired:
            unpin_request(kv, request, request.num_computed_tokens)
        free_slots(kv, request)
        return
    loads = connector.load[row] == STARTED
    end_prefill(state, request.place)
    if kv.request_blocks[request.own_blocks].retired:
        if not loads:
            connector.load[row] = NO_LOAD
        unpin_request(kv, request, request.num_computed_tokens)
    if kv.has_windows:
        drop_out_of_window(kv, request, kv.request_blocks[request.own_blocks])
    if loads or (complete and connector.keeps[row]):
        pin_request(kv, request)
        connector.is_pinned[row] = 1
        connector.place[row] = request.place
        connector.num_pinned += 1
    else:
        free_or_fence(state, request)


def free_ended(state: Replica, request: Request) -> None:
    """Unpin and free the blocks of an ended request."""
    state.connector.is_pinned[request.request_id] = 0
    state.connector.load[request.request_id] = NO_LOAD
    state.connector.num_pinned -= 1
    unpin_request(state.kv, request, request.num_computed_tokens)
    free_or_fence(state, request)


def awaits_copies(state: Replica) -> bool:
    """Return True if empty steps must run until copies have ended."""
    if state.connector.kind != OFFLOADING or state.offloading.timed:
        return False
    return has_copies(state.offloading)


def has_transfers(state: Replica) -> bool:
    """Return True if a transfer is in progress that only the host can end."""
    connector = state.connector
    if awaits_copies(state):
        return True
    if connector.kind == SESSIONS:
        return False
    return connector.num_pinned > 0 or connector.waiting_for_kv.length > 0


def has_reports(state: Replica) -> bool:
    """Return True if a report is unprocessed, or will come without the host's help."""
    connector = state.connector
    if awaits_copies(state):
        return True
    failures = connector.num_bad_blocks + connector.num_bad_requests
    return connector.num_received + connector.num_sent + failures > 0


def preempts_in_vain(state: Replica) -> bool:
    """Return True if a request running alone has preempted itself too often without progress.

    Pinned blocks leave it too few free ones, so it can only continue after a report of the host.
    """
    connector, request = state.connector, state.requests[state.preempted[0]]
    num_tokens = request.max_computed_tokens + state.num_generated_tokens
    if connector.vain_row != request.request_id or connector.vain_tokens != num_tokens:
        connector.vain_row = request.request_id
        connector.vain_tokens = num_tokens
        connector.num_vain = 0
    connector.num_vain += 1
    return connector.num_vain > MOST_IN_VAIN
