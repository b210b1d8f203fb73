"""The step being scheduled: adding, admitting and preempting requests, and their token counts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.record import NONE
from kvsim.records.request import PREEMPTED, RUNNING
from kvsim.rules.connector.prefills import end_prefill
from kvsim.rules.kv import allocate_slots, free_slots
from kvsim.rules.own_order import own_victim_place, rank_running
from kvsim.rules.queue import is_before, is_more_urgent, requeue
from kvsim.rules.vllm.dropping import reset_dropping
from kvsim.rules.vllm.encoder import return_items
from kvsim.rules.vllm.fairness import charge_admission
from kvsim.rules.waiting_for_kv import remove_from_queue

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


def batch_at(state: Replica, k: int) -> Batch:
    """Return the k-th oldest step in flight; k = num_batches gives the record of the next step."""
    return state.batches[(state.first_batch + k) % (state.limits.depth + 1)]


def calls_since_token(state: Replica, request: Request) -> int:
    """Return the ``schedule`` calls since a request's token in flight was scheduled, or 0."""
    if request.num_placeholders == 0:
        return 0
    return state.num_calls + state.limits.num_stages - request.next_call


def plan(state: Replica, batch: Batch, k: int, num_tokens: int) -> None:
    """Add the next tokens of a request to the step, and advance the request's counts."""
    request, entry = state.requests[k], batch.entries[batch.size]
    computed = request.num_computed_tokens
    end = computed + num_tokens
    batch.size += 1
    entry.request = k
    entry.num_tokens = num_tokens
    entry.end = end
    entry.num_drafts = 0
    unfinished = int(end < request.num_tokens + request.num_placeholders)
    entry.unfinished = unfinished
    request.is_chunk = unfinished
    if state.limits.num_stages > 1:
        entry.behind = calls_since_token(state, request)
    if unfinished == 0:
        request.num_placeholders += int(state.limits.asynchronous)
        if state.limits.num_stages > 1:
            request.next_call = state.num_calls + state.limits.num_stages
    if computed < request.max_computed_tokens:
        recomputed = min(end, request.max_computed_tokens) - computed
        state.totals.num_recomputed_tokens += recomputed
    request.num_computed_tokens = end
    request.num_in_flight_tokens += num_tokens


def drop(state: Replica, batch: Batch, k: int) -> int:
    """Remove a request from the step; return its scheduled tokens, 0 if it was not in the step."""
    at = 0
    while at < batch.size and batch.entries[at].request != k:
        at += 1
    if at == batch.size:
        return 0
    request, entry = state.requests[k], batch.entries[at]
    num_tokens, end = entry.num_tokens, request.num_computed_tokens
    if entry.unfinished == 0:
        request.num_placeholders -= int(state.limits.asynchronous) * (1 + entry.num_drafts)
    computed = end - num_tokens
    if computed < request.max_computed_tokens:
        recomputed = min(end, request.max_computed_tokens) - computed
        state.totals.num_recomputed_tokens -= recomputed
    request.num_computed_tokens = computed
    request.num_in_flight_tokens -= num_tokens
    batch.size -= 1
    for later in range(at, batch.size):
        old, new = batch.entries[later + 1], batch.entries[later]
        new.request = old.request
        new.num_tokens = old.num_tokens
        new.end = old.end
        new.unfinished = old.unfinished
        new.num_drafts = old.num_drafts
        new.behind = old.behind
    return num_tokens


def admit(state: Replica, batch: Batch, k: int, num_tokens: int, hit: int) -> None:
    """Move the head of the queue to the running list; its slots are already allocated."""
    request, admission = state.requests[k], state.admissions[state.num_admitted]
    remove_from_queue(state, k)
    state.head_lookup_failed = False
    state.decode_only = False
    state.num_deferred -= request.is_deferred
    request.is_deferred = 0
    admission.request = k
    admission.hit = hit
    admission.resumed = request.status == PREEMPTED
    state.num_admitted += 1
    if math.isnan(request.first_scheduled_time):
        request.first_scheduled_time = state.clock
        request.num_cached_tokens = hit
        if state.limits.fairness > 0:
            charge_admission(state, k, hit)
    request.status = RUNNING
    request.num_computed_tokens = hit
    state.running[state.num_running] = k
    state.num_running += 1
    plan(state, batch, k, num_tokens)


def victim_place(state: Replica) -> int:
    """Return the index in the running list of the request to preempt: the last, or least urgent.

    vLLM chooses the first of several equally urgent requests, since its arrival times never tie. In
    a trace they may tie. Ids then decide, unless ``clock_ties`` is set: otherwise, requests could
    preempt each other without end.
    """
    if state.limits.has_own_victim:
        return own_victim_place(state)
    if not state.limits.by_priority:
        return state.num_running - 1
    if state.limits.has_own_priority:
        rank_running(state)
    least = 0
    for place in range(1, state.num_running):
        k, other = state.running[least], state.running[place]
        if state.limits.clock_ties:
            if is_more_urgent(state, k, other):
                least = place
        elif is_before(state, k, other):
            least = place
    return least


def preempt_at(state: Replica, batch: Batch, place: int) -> int:
    """Remove a running request from the step and preempt it; return its scheduled tokens."""
    k = state.running[place]
    state.num_running -= 1
    for later in range(place, state.num_running):
        state.running[later] = state.running[later + 1]
    num_tokens = drop(state, batch, k)
    if state.limits.has_encoder:
        return_items(state, k)
    if state.connector.kind != NO_CONNECTOR:
        end_prefill(state, k)
    free_slots(state.kv, state.requests[k])
    preempt(state, k)
    return num_tokens


def preempt(state: Replica, k: int) -> None:
    """Requeue a request that has lost its KV; its prompt and output so far will be recomputed."""
    victim = state.requests[k]
    victim.status = PREEMPTED
    victim.max_computed_tokens = max(victim.max_computed_tokens, victim.num_computed_tokens)
    victim.num_computed_tokens = 0
    if state.limits.has_drops:
        reset_dropping(state, victim)
    victim.num_stale_tokens = victim.num_in_flight_tokens
    victim.num_placeholders = 0
    victim.num_drafts = 0
    record_preemption(state, k)
    requeue(state, k)


def record_preemption(state: Replica, k: int) -> None:
    state.requests[k].num_preemptions += 1
    state.preempted[state.num_preempted] = k
    state.num_preempted += 1
    state.totals.num_preemptions += 1
    state.refused = False  # the new head has not been tried
    state.decode_only = False


def recycle(state: Replica, k: int) -> None:
    """Free a request's record for reuse, unless a step in flight still refers to it."""
    if state.connector.kind != NO_CONNECTOR and state.requests[k].own_blocks != NONE:
        return  # a transfer still needs its blocks
    if state.requests[k].num_in_flight_tokens == 0:
        state.free_requests[state.num_free_requests] = k
        state.num_free_requests += 1


def num_running_seqs(state: Replica) -> int:
    """Return the number of sequences of the running requests."""
    if not state.cost.has_samples:
        return state.num_running
    total = 0
    for place in range(state.num_running):
        total += state.requests[state.running[place]].num_samples
    return total


def grow_running(state: Replica, batch: Batch) -> None:
    """Schedule the next tokens of every running request; preempt if one cannot allocate.

    A request that cannot allocate may be its own victim. Allocation cannot fail under a manager
    that reserves all slots at admission.
    """
    place = 0
    while place < state.num_running:
        k = state.running[place]
        request = state.requests[k]
        num_tokens = request.num_tokens - request.num_computed_tokens
        if num_tokens == 0:
            place += 1
            continue
        victim = NONE
        while victim != k and not allocate_slots(state.kv, request, num_tokens):
            state.totals.num_allocation_failures += 1
            at = victim_place(state)
            victim = state.running[at]
            preempt_at(state, batch, at)
            if at <= place:
                place -= 1
        if victim != k:
            plan(state, batch, k, num_tokens)
        place += 1
