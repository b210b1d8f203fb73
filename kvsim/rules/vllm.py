"""The scheduler of vLLM 0.33: chunked prefill under a token budget, recompute preemption.

docs/vllm-rules.md tells the rules in words, section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR, UNKNOWN
from kvsim.records.fairness import DLPM
from kvsim.records.record import NONE
from kvsim.records.request import WAITING_FOR_INPUT, WAITING_FOR_REMOTE_KVS
from kvsim.rules.batch import admit, plan, preempt_at, victim_place
from kvsim.rules.cadence import is_prefill_held, note_cadence
from kvsim.rules.checkpoint import num_to_state
from kvsim.rules.connector import (
    admit_connected,
    begin_connected,
    find_computed,
    note_connected,
    promote,
    start_load,
)
from kvsim.rules.dlpm import match_prefixes, may_admit
from kvsim.rules.dropping import drops_stale
from kvsim.rules.encoder import (
    begin_encoding,
    choose_items,
    count_encoded,
    encode_items,
    release_all,
)
from kvsim.rules.fetching import AHEAD, ask
from kvsim.rules.grammar import lacks_grammar
from kvsim.rules.growing import ask_for_growth
from kvsim.rules.held import leave_queue, next_in_line, num_queued, put_back
from kvsim.rules.kept import is_in_use
from kvsim.rules.kv import admit_slots, allocate_slots
from kvsim.rules.lora import add_lora, has_room_for_lora, note_loras, note_switch
from kvsim.rules.pausing import num_admissible, step_budget
from kvsim.rules.prefills import note_prefill
from kvsim.rules.queue import defer
from kvsim.rules.reading import read_cache
from kvsim.rules.replay import num_replayed, worth_replaying
from kvsim.rules.speculation import add_drafts, expect_drafts, is_padded, without_lookahead

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request


def schedule_vllm(state: Replica, batch: Batch) -> None:
    """Decide a step: running requests first, in order, then the queue, within one token budget."""
    limits, num_unfinished = state.limits, state.num_running + num_queued(state)
    state.budget = step_budget(state)
    state.input_budget = limits.max_num_batched_tokens
    held = is_prefill_held(state)
    state.num_calls += 1
    state.carries_prefill = False
    state.carries_chunk = False
    if state.connector.kind != NO_CONNECTOR:
        begin_connected(state)
    # Most tokens of one request in this step, 0 for no limit; a lone request has none.
    threshold = limits.long_prefill_token_threshold if num_unfinished > 1 else 0
    if threshold > 0 and limits.adaptive:
        threshold = max(threshold, limits.max_num_batched_tokens // num_unfinished)
    if limits.has_encoder:
        begin_encoding(state)
    if state.num_growing > 0:
        ask_for_growth(state)
    schedule_running(state, batch, threshold, held)
    if limits.max_loras > 0:
        note_loras(state)
    if state.num_preempted == 0:
        state.has_scheduled_running = batch.size > 0
        schedule_waiting(state, batch, threshold, held)
    if limits.has_encoder:
        count_encoded(state)
    if limits.prefill_schedule_interval > 1:
        note_cadence(state, batch, held)
    if limits.num_drafts > 0:
        expect_drafts(state, batch)
    if state.connector.kind != NO_CONNECTOR:
        note_connected(state, batch)


def schedule_running(state: Replica, batch: Batch, threshold: int, held: bool) -> None:
    """Give every running request its next tokens, drafts included.

    A request that finds no block preempts: under FCFS the latest admitted one, under priority the
    least urgent one, possibly itself. ``held``: prompts are not computed in this step.
    """
    longest, index = state.limits.max_model_len - 1, 0
    staged = state.limits.asynchronous and state.limits.num_stages > 1
    speculates, slots = state.limits.num_drafts > 0, state.limits.num_draft_slots
    encodes = state.limits.has_encoder
    budget, inputs = state.budget, state.input_budget - slots
    while index < state.num_running and budget > 0 and inputs > 0:
        ask(state.requests, state.running[min(index + AHEAD, state.num_running - 1)])
        k = state.running[index]
        request = state.requests[k]
        computed, placeholders = request.num_computed_tokens, request.num_placeholders
        known = computed + 2 - placeholders
        if placeholders > 0 and known >= request.end and known >= request.known_end:
            index += 1  # its last token is in flight already
            continue
        if (staged and request.next_call > state.num_calls) or (held and request.is_chunk > 0):
            index += 1
            continue
        num_tokens = request.num_tokens + request.num_drafts + placeholders - computed
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        num_tokens = min(num_tokens, budget, inputs, longest - computed)
        if encodes and num_tokens > 0:
            num_tokens = choose_items(state, request, computed, num_tokens)
        if state.kv.has_states:
            num_tokens = num_to_state(state, request, computed, num_tokens)
        if speculates and num_tokens > 0:
            num_tokens = without_lookahead(state, request, computed, num_tokens)
        if num_tokens <= 0:
            index += 1
            continue
        victim, fenced = NONE, False
        while victim != k and not allocate_slots(state.kv, request, num_tokens):
            state.totals.num_allocation_failures += 1
            place = victim_place(state)
            victim = state.running[place]
            if state.connector.has_fence and is_in_use(state.requests[victim], batch):
                fenced = True
                break
            given_back = preempt_at(state, batch, place)
            budget += given_back
            inputs += given_back + (slots if given_back > 0 else 0)
            if place < index:
                index -= 1
        if fenced:
            break
        if victim == k:
            if not state.limits.by_priority:
                break
            continue
        if request.is_chunk > 0:
            state.carries_prefill = True
            state.carries_chunk = True
        plan(state, batch, k, num_tokens)
        if encodes:
            encode_items(state, k)
        if speculates:
            num_known = request.num_tokens + placeholders - computed
            add_drafts(state, batch, max(min(request.num_drafts, num_tokens - num_known), 0))
            request.num_drafts = 0
        budget -= num_tokens
        inputs -= num_tokens + slots
        index += 1
    state.budget, state.input_budget = budget, inputs + slots


def must_wait(state: Replica, request: Request) -> bool:
    """Whether others are admitted past a waiting request: it cannot run yet, whatever the room."""
    if request.num_stale_tokens > 0 and not drops_stale(state, request):
        return True
    if state.limits.has_grammars and lacks_grammar(state, request):
        return True
    if state.limits.has_sessions and request.status == WAITING_FOR_INPUT:
        return True
    return state.limits.max_loras > 0 and not has_room_for_lora(state, request)


def set_aside(state: Replica, k: int, num_aside: int) -> None:
    """Take a request out of its queue for the rest of this step."""
    leave_queue(state, k)
    defer(state, state.requests[k])
    state.aside[num_aside] = k


def schedule_waiting(state: Replica, batch: Batch, threshold: int, held: bool) -> None:
    """Admit from the head of the queue while budget, places and memory last.

    The head blocks those behind it, but for requests that must wait for something else.
    """
    num_aside, kv, limits = 0, state.kv, state.limits
    connected = state.connector.kind != NO_CONNECTOR
    budget, inputs = state.budget, state.input_budget - limits.num_draft_slots
    if limits.fairness == DLPM and state.num_running < limits.max_active:
        match_prefixes(state)
    while (
        budget > 0
        and inputs > 0
        and num_admissible(state) > 0
        and state.num_running + state.num_idle < limits.max_active
    ):
        if limits.fairness == DLPM and not may_admit(state):
            state.refused = False
            break
        k = next_in_line(state)
        request = state.requests[k]
        loads = request.status == WAITING_FOR_REMOTE_KVS
        if (loads and not promote(state, request)) or must_wait(state, request):
            set_aside(state, k, num_aside)
            num_aside += 1
            continue
        hit = find_computed(state, request) if connected else read_cache(state, request)
        if hit == UNKNOWN:
            set_aside(state, k, num_aside)
            num_aside += 1
            continue
        num_replays = 0
        if kv.replay_window > 0 and request.holding == NONE:
            hit = worth_replaying(state, hit)
            num_replays = num_replayed(kv, hit)
        computed = hit - num_replays
        num_tokens = request.num_tokens - computed
        if connected and state.connector.is_async:
            state.refused = not start_load(state, k)
            if state.refused:
                state.totals.num_allocation_failures += 1
                break
            set_aside(state, k, num_aside)
            num_aside += 1
            continue
        if held and num_tokens > 1:
            state.refused = False
            break
        num_drafts = 0
        if is_padded(state, request, computed):
            num_drafts = limits.num_drafts
            num_tokens += num_drafts
            if num_tokens > min(budget, inputs):
                state.refused = False
                break
        if 0 < threshold < num_tokens:
            num_tokens = threshold
        if num_tokens > min(budget, inputs) and not limits.enable_chunked_prefill:
            state.refused = False
            break
        num_tokens = min(num_tokens, budget, inputs)
        if limits.has_encoder:
            num_tokens = choose_items(state, request, computed, num_tokens)
        if kv.has_states and num_tokens > 0:
            whole, num_tokens = num_tokens, num_to_state(state, request, computed, num_tokens)
            if num_tokens == 0:
                state.refused = False
                break
            if num_drafts > 0 and num_tokens < whole:
                num_tokens, num_drafts = 1, 0
        if limits.num_drafts > 0:
            num_tokens = without_lookahead(state, request, computed, num_tokens)
        if (limits.has_encoder or limits.num_drafts > 0) and num_tokens == 0:
            set_aside(state, k, num_aside)
            num_aside += 1
            continue
        if connected:
            num_new = max(num_tokens - num_replays, 0)
            state.refused = not admit_connected(state, request, num_new)
        else:
            state.refused = not admit_slots(kv, request, max(num_tokens - num_replays, 0), hit)
        if state.refused:
            state.tried = True
            if limits.fairness > 0:
                state.shares.refused = k
            state.totals.num_allocation_failures += 1
            if limits.has_encoder:
                release_all(state, request)
            break
        if request.num_tokens - computed > 1:
            state.carries_prefill = True
        admit(state, batch, k, num_tokens, computed)
        if connected:
            note_prefill(state, k)
        if limits.has_encoder:
            encode_items(state, k)
        if limits.num_drafts > 0:
            add_drafts(state, batch, num_drafts)
        budget -= num_tokens
        inputs -= num_tokens + limits.num_draft_slots
        if limits.max_loras > 0:
            note_switch(state, request)
            add_lora(state, request)
    for place in range(num_aside - 1, -1, -1):
        put_back(state, state.aside[place])
