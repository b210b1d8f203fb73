"""The scheduler of vLLM 0.33: chunked prefill under a token budget, recompute preemption.

docs/vllm-rules.md tells the rules in words, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.batch import admit, plan, preempt_at, victim_place
from kvsim.rules.cadence import is_prefill_held, note_cadence
from kvsim.rules.kv import admit_slots, allocate_slots, look_up
from kvsim.rules.lora import add_lora, has_room_for_lora, note_loras
from kvsim.rules.queue import defer, dequeue, head_of, requeue

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


def schedule_vllm(state: Replica, batch: Batch) -> None:
    """Decide a step: running requests first, in order, then the queue, within one token budget."""
    limits, num_unfinished = state.limits, state.num_running + state.waiting.length
    budget = limits.max_num_scheduled_tokens
    held = is_prefill_held(state)
    state.num_calls += 1
    state.carries_prefill = False
    # Most tokens of one request in this step, 0 for no limit; a lone request has none.
    threshold = limits.long_prefill_token_threshold if num_unfinished > 1 else 0
    if threshold > 0 and limits.adaptive:
        threshold = max(threshold, limits.max_num_batched_tokens // num_unfinished)
    budget = schedule_running(state, batch, budget, threshold, held)
    if limits.max_loras > 0:
        note_loras(state)
    if state.num_preempted == 0:
        schedule_waiting(state, batch, budget, threshold, held)
    if limits.prefill_schedule_interval > 1:
        note_cadence(state, batch, held)


def schedule_running(state: Replica, batch: Batch, budget: int, threshold: int, held: bool) -> int:
    """Give every running request its next tokens; returns the budget left.

    A request that finds no block preempts: under FCFS the latest admitted one, under priority the
    least urgent one, possibly itself. ``held``: prompts are not computed in this step.
    """
    longest, index = state.limits.max_model_len - 1, 0
    staged = state.limits.asynchronous and state.limits.num_stages > 1
    while index < state.num_running and budget > 0:
        k = state.running[index]
        request = state.requests[k]
        computed, placeholders = request.num_computed_tokens, request.num_placeholders
        if placeholders > 0 and computed + 2 - placeholders >= request.end:
            index += 1  # its last token is in flight already
            continue
        if (staged and request.next_call > state.num_calls) or (held and request.is_chunk > 0):
            index += 1
            continue
        num_tokens = request.num_tokens + placeholders - computed
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        num_tokens = min(num_tokens, budget, longest - computed)
        if num_tokens <= 0:
            index += 1
            continue
        victim = NONE
        while victim != k and not allocate_slots(state.kv, request, num_tokens):
            state.totals.num_allocation_failures += 1
            place = victim_place(state)
            victim = state.running[place]
            budget += preempt_at(state, batch, place)
            if place < index:
                index -= 1
        if victim == k:
            if not state.limits.by_priority:
                return budget
            continue
        state.carries_prefill |= request.is_chunk > 0
        plan(state, batch, k, num_tokens)
        budget -= num_tokens
        index += 1
    return budget


def must_wait(state: Replica, request: Request) -> bool:
    """Whether others are admitted past a waiting request: it cannot run yet, whatever the room."""
    if request.num_stale_tokens > 0:
        return True
    grammars = state.limits.has_grammars
    if grammars and state.trace.ready_time[request.request_id] > state.ready_clock:
        return True
    return state.limits.max_loras > 0 and not has_room_for_lora(state, request)


def schedule_waiting(state: Replica, batch: Batch, budget: int, threshold: int, held: bool) -> None:
    """Admit from the head of the queue while budget, places and memory last.

    The head blocks those behind it, but for requests that must wait for something else.
    """
    num_aside, kv = 0, state.kv
    while budget > 0 and state.waiting.length > 0 and state.num_running < state.limits.max_active:
        k = head_of(state)
        request = state.requests[k]
        if must_wait(state, request):
            dequeue(state, k)
            defer(state, request)
            state.aside[num_aside] = k
            num_aside += 1
            continue
        hit = look_up(kv, request)
        num_tokens = request.num_tokens - hit
        if held and num_tokens > 1:
            state.refused = False
            break
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        if num_tokens > budget and not state.limits.enable_chunked_prefill:
            state.refused = False
            break
        num_tokens = min(num_tokens, budget)
        state.refused = not admit_slots(kv, request, num_tokens, hit)
        if state.refused:
            state.tried = True
            state.totals.num_allocation_failures += 1
            break
        state.carries_prefill |= request.num_tokens - hit > 1
        admit(state, batch, k, num_tokens, hit)
        budget -= num_tokens
        if state.limits.max_loras > 0:
            add_lora(state, request)
    for place in range(num_aside - 1, -1, -1):
        requeue(state, state.aside[place])
