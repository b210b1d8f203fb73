"""The scheduler of vLLM before V1: steps of whole prompts before decodes; swap or recompute.

The rules are those of vLLM 0.1 to 0.8's V0 engine without chunked prefill (`core/scheduler.py`):
a step computes either prompts or one token of every running request. A request that finds no
free block preempts the request that arrived last, which is recomputed later or, if configured,
waits in host memory. While any request is swapped out, no prompt is admitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.records.request import RUNNING, SWAPPED
from kvsim.rules.batch import admit, num_running_seqs, plan, preempt, record_preemption
from kvsim.rules.kv import (
    admit_slots,
    allocate_slots,
    free_slots,
    has_blocks,
    num_free,
    swap_in,
    swap_out,
)
from kvsim.rules.queue import head_of, is_before

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


def schedule_v0(state: Replica, batch: Batch) -> None:
    """Schedule a step of prompts; if there are none, decode, and swap in the requests that fit."""
    if state.num_swapped == 0:
        schedule_prompts(state, batch)
    if batch.size == 0:
        schedule_decodes(state, batch)
        if state.num_preempted == 0:
            swap_in_waiting(state, batch)


def schedule_prompts(state: Replica, batch: Batch) -> None:
    """Admit whole prompts from the queue's head while budget, max_num_seqs and memory allow."""
    if state.waiting.length == 0 or state.num_running >= state.limits.max_num_seqs:
        return
    budget, num_seqs = state.limits.max_num_batched_tokens, num_running_seqs(state)
    while state.waiting.length > 0:
        k = head_of(state)
        request = state.requests[k]
        num_seqs += request.num_samples
        if num_seqs > state.limits.max_num_seqs:
            break
        num_tokens = request.num_tokens
        if num_tokens > budget:
            state.refused = False
            break
        state.refused = not admit_slots(state.kv, request, num_tokens, 0)
        if state.refused:
            state.head_lookup_failed = True
            state.totals.num_allocation_failures += 1
            break
        admit(state, batch, k, num_tokens, 0)
        insert(state, state.running, state.num_running - 1, k)
        budget -= num_tokens


def schedule_decodes(state: Replica, batch: Batch) -> None:
    """Give every running request its next token, the most urgent first.

    A request that finds no block preempts the least urgent one, possibly itself. The running list
    is always sorted by urgency.
    """
    place = 0
    while place < state.num_running:
        k = state.running[place]
        request, victim = state.requests[k], NONE
        while victim != k and not append_slot(state, request):
            state.totals.num_allocation_failures += 1
            state.num_running -= 1
            victim = state.running[state.num_running]
            preempt_v0(state, victim)
        if victim != k:
            plan(state, batch, k, request.num_tokens - request.num_computed_tokens)
            place += 1


def insert(state: Replica, places: list[int], end: int, k: int) -> None:
    """Insert a request into the first ``end`` entries of a list, which are sorted by urgency."""
    at = end
    while at > 0 and is_before(state, k, places[at - 1]):
        places[at] = places[at - 1]
        at -= 1
    places[at] = k


def append_slot(state: Replica, request: Request) -> bool:
    """Allocate the next token's slot; a block per sequence must be free even if none is needed."""
    if has_blocks(state.kv, request) and num_free(state.kv) < request.num_samples:
        return False
    num_tokens = request.num_tokens - request.num_computed_tokens
    return allocate_slots(state.kv, request, num_tokens)


def preempt_v0(state: Replica, k: int) -> None:
    """Swap a request out, or else queue it for recomputation.

    V0 cannot recompute a request with several sequences as one prompt, so it swaps it if possible.
    """
    request, swapped_bytes = state.requests[k], 0
    if state.limits.swaps or request.num_samples > 1:
        swapped_bytes = swap_out(state.kv, request)
    if swapped_bytes == 0:
        free_slots(state.kv, request)
        preempt(state, k)
        return
    state.swapped_bytes += swapped_bytes
    request.status = SWAPPED
    insert(state, state.swapped, state.num_swapped, k)
    state.num_swapped += 1
    record_preemption(state, k)


def swap_in_waiting(state: Replica, batch: Batch) -> None:
    """Swap requests back in, the most urgent first, while max_num_seqs and memory allow."""
    if state.num_swapped == 0:
        return
    num_seqs, num_back = num_running_seqs(state), 0
    while num_back < state.num_swapped:
        k = state.swapped[num_back]
        request = state.requests[k]
        num_seqs += request.num_samples
        if num_seqs > state.limits.max_num_seqs:
            break
        swapped_bytes = swap_in(state.kv, request)
        if swapped_bytes == 0:
            break
        num_back += 1
        state.decode_only = False
        state.swapped_bytes += swapped_bytes
        request.status = RUNNING
        insert(state, state.running, state.num_running, k)
        state.num_running += 1
        num_tokens = request.num_tokens - request.num_computed_tokens
        if allocate_slots(state.kv, request, num_tokens):
            plan(state, batch, k, num_tokens)
    state.num_swapped -= num_back
    for place in range(state.num_swapped):
        state.swapped[place] = state.swapped[place + num_back]
