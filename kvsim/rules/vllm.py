"""The scheduler of vLLM 0.33: chunked prefill under a token budget, recompute preemption.

docs/vllm-rules.md tells the rules in words, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.batch import admit, plan, preempt_at, victim_place
from kvsim.rules.kv import admit_slots, allocate_slots, look_up
from kvsim.rules.queue import dequeue, head_of, requeue

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def schedule_vllm(state: Replica, batch: Batch) -> None:
    """Decide a step: running requests first, in order, then the queue, within one token budget."""
    limits, num_unfinished = state.limits, state.num_running + state.waiting.length
    budget = limits.max_num_batched_tokens
    # Most tokens of one request in this step, 0 for no limit; a lone request has none.
    threshold = limits.long_prefill_token_threshold if num_unfinished > 1 else 0
    if threshold > 0 and limits.adaptive:
        threshold = max(threshold, budget // num_unfinished)
    budget = schedule_running(state, batch, budget, threshold)
    if state.num_preempted == 0:
        schedule_waiting(state, batch, budget, threshold)


def schedule_running(state: Replica, batch: Batch, budget: int, threshold: int) -> int:
    """Give every running request its next tokens; returns the budget left.

    A request that finds no block preempts: under FCFS the latest admitted one, under priority the
    least urgent one, possibly itself.
    """
    longest, index = state.limits.max_model_len - 1, 0
    while index < state.num_running and budget > 0:
        k = state.running[index]
        request = state.requests[k]
        computed, placeholders = request.num_computed_tokens, request.num_placeholders
        if placeholders > 0 and computed + 2 - placeholders >= request.end:
            index += 1  # its last token is in flight already
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
        plan(state, batch, k, num_tokens)
        budget -= num_tokens
        index += 1
    return budget


def schedule_waiting(state: Replica, batch: Batch, budget: int, threshold: int) -> None:
    """Admit from the head of the queue while budget, places and memory last.

    The head blocks those behind it, but for requests whose old tokens are still in flight.
    """
    num_aside, kv = 0, state.kv
    while budget > 0 and state.waiting.length > 0 and state.num_running < state.limits.max_active:
        k = head_of(state)
        request = state.requests[k]
        if request.num_stale_tokens > 0:
            dequeue(state, k)
            state.aside[num_aside] = k
            num_aside += 1
            continue
        hit = look_up(kv, request)
        num_tokens = request.num_tokens - hit
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
        admit(state, batch, k, num_tokens, hit)
        budget -= num_tokens
    for place in range(num_aside - 1, -1, -1):
        requeue(state, state.aside[place])
