"""The scheduler of vLLM 0.33: chunked prefill under a token budget, recompute preemption.

docs/vllm-rules.md, section 3, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.records.request import RUNNING
from kvsim.rules.batch import plan, preempt_at, victim_place
from kvsim.rules.connector.pinned import is_in_use
from kvsim.rules.fetching import AHEAD, prefetch_item
from kvsim.rules.growing import prefetch_growth
from kvsim.rules.kv import allocate_slots
from kvsim.rules.vllm.admission import schedule_waiting
from kvsim.rules.vllm.features import (
    begin_features,
    end_features,
    is_prefill_held,
    limit_tokens,
    record_planned,
)
from kvsim.rules.vllm.lora import record_loras
from kvsim.rules.vllm.pausing import step_budget
from kvsim.rules.waiting_for_kv import num_queued

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


def schedule_vllm(state: Replica, batch: Batch) -> None:
    """Schedule a step within a token budget: the running requests first, then the queue."""
    limits, num_unfinished = state.limits, state.num_running + num_queued(state)
    state.budget = step_budget(state)
    state.input_budget = limits.max_num_batched_tokens
    held = limits.has_features and is_prefill_held(state.features, state)
    state.num_calls += 1
    state.carries_prefill = False
    state.carries_chunk = False
    begin_features(state)
    # Maximum tokens of one request in this step; 0: no limit, as for a single unfinished request.
    threshold = limits.long_prefill_token_threshold if num_unfinished > 1 else 0
    if threshold > 0 and limits.adaptive:
        threshold = max(threshold, limits.max_num_batched_tokens // num_unfinished)
    if state.num_growing > 0:
        prefetch_growth(state)
    schedule_running(state, batch, threshold, held)
    if limits.has_loras:
        record_loras(state)
    if state.num_preempted == 0:
        state.has_scheduled_running = batch.size > 0
        schedule_waiting(state, batch, threshold, held)
    end_features(state, batch)


def schedule_running(state: Replica, batch: Batch, threshold: int, held: bool) -> None:
    """Schedule the next tokens of every running request, drafts included.

    If a request's slots cannot be allocated, the last admitted request (FCFS) or the least urgent
    one (priority) is preempted, possibly the request itself. ``held``: no prefill in this step.
    """
    index, slots = 0, state.limits.num_draft_slots
    while index < state.num_running and state.budget > 0 and state.input_budget > slots:
        prefetch_item(state.requests, state.running[min(index + AHEAD, state.num_running - 1)])
        k = state.running[index]
        request, num_tokens = state.requests[k], 0
        if not sits_out(state, request, held):
            num_tokens = next_tokens(state, request, threshold)
        if num_tokens <= 0:
            index += 1
            continue
        if not allocate_slots(state.kv, request, num_tokens):
            index = preempt_for_slots(state, batch, index, num_tokens)
            if index == NONE:
                break
            if request.status != RUNNING:
                continue
        schedule_next(state, batch, k, num_tokens)
        index += 1


def sits_out(state: Replica, request: Request, held: bool) -> bool:
    """Return True if a running request gets no tokens in this step, even with budget left."""
    limits, placeholders = state.limits, request.num_placeholders
    known = request.num_computed_tokens + 2 - placeholders
    if placeholders > 0 and known >= request.end and known >= request.known_end:
        return True  # its last token is in flight already
    if limits.asynchronous and limits.num_stages > 1 and request.next_call > state.num_calls:
        return True
    return held and request.is_chunk > 0


def next_tokens(state: Replica, request: Request, threshold: int) -> int:
    """Return the number of tokens that a running request computes in this step."""
    computed = request.num_computed_tokens
    num_tokens = request.num_tokens + request.num_drafts + request.num_placeholders - computed
    if 0 < threshold < num_tokens:
        num_tokens = threshold
    room = min(state.budget, state.input_budget - state.limits.num_draft_slots)
    num_tokens = min(num_tokens, room, state.limits.max_model_len - 1 - computed)
    return limit_tokens(state, request, computed, num_tokens)


def preempt_for_slots(state: Replica, batch: Batch, index: int, num_tokens: int) -> int:
    """Preempt until the running request at ``index`` has its slots; return its new index.

    The request may preempt itself. NONE: no running request gets more tokens in this step.
    """
    k, slots = state.running[index], state.limits.num_draft_slots
    has_slots = False
    while not has_slots:
        state.totals.num_allocation_failures += 1
        place = victim_place(state)
        victim = state.running[place]
        if state.connector.has_fence and is_in_use(state.requests[victim], batch):
            return NONE
        given_back = preempt_at(state, batch, place)
        state.budget += given_back
        state.input_budget += given_back + (slots if given_back > 0 else 0)
        if place < index:
            index -= 1
        if victim == k:
            return index if state.limits.by_priority or state.limits.has_own_victim else NONE
        has_slots = allocate_slots(state.kv, state.requests[k], num_tokens)
    return index


def schedule_next(state: Replica, batch: Batch, k: int, num_tokens: int) -> None:
    """Schedule tokens of a running request after their slots were allocated."""
    request, num_drafts = state.requests[k], 0
    if request.is_chunk > 0:
        state.carries_prefill = True
        state.carries_chunk = True
    if state.limits.num_drafts > 0:
        known = request.num_tokens + request.num_placeholders - request.num_computed_tokens
        num_drafts = max(min(request.num_drafts, num_tokens - known), 0)
    plan(state, batch, k, num_tokens)
    record_planned(state, batch, k, num_drafts)
    state.budget -= num_tokens
    state.input_budget -= num_tokens + state.limits.num_draft_slots
