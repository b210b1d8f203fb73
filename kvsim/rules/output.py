"""The output of a finished step: every request's token, and the requests that end with it.

vLLM knows max_tokens and max_model_len in advance. It learns of EOS or a stop token only when it
processes the step's output. Under asynchronous scheduling the request is then in the next step
already, and uses one more token of budget and work, and perhaps a block.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.engines.baselines.rules.static import end_batch, retire_request
from kvsim.engines.policies import STATIC
from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.request import FINISHED, RUNNING
from kvsim.rules.abort import ENDED, end_request
from kvsim.rules.batch import recycle
from kvsim.rules.connector.report import begin_update, end_update
from kvsim.rules.connector.scheduler import release
from kvsim.rules.fetching import AHEAD, prefetch_item
from kvsim.rules.growing import begin_growing, record_growth
from kvsim.rules.kv import cache_computed, free_slots
from kvsim.rules.recorder import record_gap, record_token
from kvsim.rules.vllm.dropping import is_void, number_outputs
from kvsim.rules.vllm.encoder import release_computed
from kvsim.rules.vllm.fairness import charge_output
from kvsim.rules.vllm.sessions import end_turn, goes_on, queue_turns
from kvsim.rules.vllm.speculation import roll_back, set_proposed_drafts, verify
from kvsim.rules.waiting_for_kv import remove_from_queue

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Entry, Replica
    from kvsim.records.request import Request


def process_output(state: Replica, batch: Batch) -> None:
    """Process the output of a finished step: append its requests' tokens, in the step's order."""
    before, now = state.last_token_time, batch.end
    num_regular, num_sampled, num_finished, num_turns = 0, 0, 0, 0
    begin_growing(state, now - before)
    if state.connector.kind != NO_CONNECTOR:
        begin_update(state, batch)
    for at in range(batch.size):
        prefetch_item(state.requests, batch.entries[min(at + AHEAD, batch.size - 1)].request)
        entry = batch.entries[at]
        k = entry.request
        request = state.requests[k]
        stale = settle_in_flight(request, entry)
        accepted = num_accepted(state, entry, request)
        if request.status == FINISHED:
            recycle(state, k)
            continue
        if gets_nothing(state, request, entry, accepted, stale):
            continue
        deliver(state, k, accepted, stale)
        num_sampled += 1
        if request.last_token_time == before:
            num_regular += 1
        else:
            record_token(state, request, now)
        request.last_token_time = now
        if not stale:
            confirm(state, request, accepted)
        if request.num_tokens >= request.end:
            if state.limits.has_sessions and goes_on(state, request):
                end_turn(state, k)
                state.skipped[num_turns] = k
                num_turns += 1
            else:
                finish(state, k, now)
                num_finished += 1
    end_output(state, batch, num_finished, num_turns)
    if num_regular > 0:
        record_gap(state, now - before, num_regular)
    if num_sampled > 0:
        state.last_token_time = now


def settle_in_flight(request: Request, entry: Entry) -> bool:
    """Remove a step's tokens from those in flight; True if the request was preempted meanwhile."""
    request.num_in_flight_tokens -= entry.num_tokens
    stale = request.num_stale_tokens > 0
    if stale:
        request.num_stale_tokens -= entry.num_tokens
    return stale


def num_accepted(state: Replica, entry: Entry, request: Request) -> int:
    """Verify the drafts of a request; return the number of accepted drafts."""
    if state.limits.num_drafts > 0 and entry.num_drafts > 0 and entry.unfinished == 0:
        return verify(state, entry, request)
    return 0


def gets_nothing(
    state: Replica, request: Request, entry: Entry, accepted: int, stale: bool
) -> bool:
    """Roll back rejected drafts; return True if the step leaves the request without a token."""
    skips = state.connector.kind != NO_CONNECTOR or state.limits.has_drops
    if skips and is_void(state, request, entry, stale, accepted + 1):
        return True
    if state.limits.num_drafts > 0 and entry.num_drafts > accepted and not stale:
        rejected = entry.num_drafts - accepted
        roll_back(state, request, rejected)
        if request.num_placeholders > 0:
            request.num_placeholders -= rejected
    if state.limits.has_encoder:
        release_computed(state, request)
    return entry.unfinished > 0


def deliver(state: Replica, k: int, accepted: int, stale: bool) -> None:
    """Append the accepted drafts and the sampled token to a request.

    A preempted request (``stale``) gets its tokens, too, although their KV is lost.
    """
    request = state.requests[k]
    known = min(accepted + 1, request.end - request.num_tokens)
    if state.limits.has_drops:
        number_outputs(state, request, known)
    request.num_tokens += known
    state.num_generated_tokens += known * (request.num_samples if state.cost.has_samples else 1)
    if state.limits.fairness > 0:
        charge_output(state, k, known)
    if known <= accepted and not stale:
        roll_back(state, request, accepted + 1 - known)
    record_growth(state, k)


def confirm(state: Replica, request: Request, accepted: int) -> None:
    """Remove the placeholders of tokens that are now known, and set the keys of their blocks."""
    speculates = state.limits.num_drafts > 0
    if request.num_placeholders > 0:
        request.num_placeholders -= accepted + 1
    elif not speculates:
        return
    if request.status == RUNNING and (state.limits.asynchronous or speculates):
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        cache_computed(state.kv, request, computed)


def finish(state: Replica, k: int, now: float) -> None:
    """End a request that has got its last token."""
    request = state.requests[k]
    if request.status != RUNNING:  # preempted while its last token was in flight
        remove_from_queue(state, k)
        state.num_deferred -= request.is_deferred
        recycle(state, k)
    elif state.limits.scheduler == STATIC:
        retire_request(state, k)
    elif state.connector.kind != NO_CONNECTOR:
        release(state, request, True)
    else:
        free_slots(state.kv, request)
    request.finish_time = now
    end_request(state, k, ENDED)


def end_output(state: Replica, batch: Batch, num_finished: int, num_turns: int) -> None:
    """End a step's output: drafts, finished requests, ended turns, and the connector's report."""
    if state.limits.num_drafts > 0 and not state.limits.asynchronous:
        set_proposed_drafts(state, batch)
    if num_finished > 0:
        remove_finished(state)
        if state.limits.scheduler == STATIC:
            end_batch(state)
    if state.limits.has_sessions:
        queue_turns(state, num_turns)
    if state.connector.kind != NO_CONNECTOR:
        end_update(state)


def remove_finished(state: Replica) -> None:
    """Remove finished requests from the running list; free their records, except under static."""
    kept = 0
    for place in range(state.num_running):
        k = state.running[place]
        if state.requests[k].status == FINISHED:
            if state.limits.scheduler != STATIC:
                recycle(state, k)
        else:
            state.running[kept] = k
            kept += 1
    state.num_running = kept
    state.head_lookup_failed = False
    state.is_full = False


def record_surplus(state: Replica, batch: Batch) -> None:
    """Record the time after which steps compute only surplus tokens of ended requests."""
    if state.num_outstanding > 0:
        state.surplus_since = math.inf
    elif batch.size > 0:
        state.surplus_since = min(state.surplus_since, state.clock)
