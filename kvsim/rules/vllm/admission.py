"""Admission from the waiting queue, as vLLM's scheduler does it.

docs/vllm-rules.md, section 3, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.tensorrt_llm.rules.capacity import can_complete
from kvsim.records.connector import NO_CONNECTOR, UNKNOWN
from kvsim.records.fairness import DLPM
from kvsim.records.record import NONE
from kvsim.rules.batch import admit
from kvsim.rules.blocks.paged import lacks_blocks
from kvsim.rules.connector.scheduler import admit_connected, find_computed, start_load
from kvsim.rules.kv import admit_slots, has_pool
from kvsim.rules.queue import defer
from kvsim.rules.vllm.dlpm import may_admit
from kvsim.rules.vllm.features import (
    begin_admission,
    is_admission_over,
    limit_first_tokens,
    must_wait,
    record_admitted,
    record_refused,
)
from kvsim.rules.vllm.pausing import num_admissible
from kvsim.rules.vllm.reading import read_cache
from kvsim.rules.vllm.replay import num_replayed, worth_replaying
from kvsim.rules.vllm.speculation import is_padded
from kvsim.rules.waiting_for_kv import next_in_line, remove_from_queue, return_to_front

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request

#: Verdicts on the head of the queue; SKIP: go on with the next request; STOP: end admissions.
ADMITTED, SKIP, STOP = range(3)


def schedule_waiting(state: Replica, batch: Batch, threshold: int, held: bool) -> None:
    """Admit from the head of the queue until budget, batch slots or memory are used up.

    A head for which memory is short blocks the queue; a head that must wait for something else is
    skipped. ``threshold``: most tokens of one request, 0 for no limit; ``held``: no prefill in this
    step.
    """
    num_skipped, limits = 0, state.limits
    begin_admission(state)
    while (
        state.budget > 0
        and state.input_budget > limits.num_draft_slots
        and num_admissible(state) > 0
        and state.num_running + state.num_idle < limits.max_active
    ):
        if limits.fairness == DLPM and not may_admit(state):
            state.refused = False
            break
        if limits.has_features and is_admission_over(state.features, state):
            state.refused = False
            break
        k = next_in_line(state)
        verdict = consider(state, batch, k, threshold, held)
        if verdict == STOP:
            break
        if verdict == SKIP:
            remove_from_queue(state, k)
            defer(state, state.requests[k])
            state.skipped[num_skipped] = k
            num_skipped += 1
    for place in range(num_skipped - 1, -1, -1):
        return_to_front(state, state.skipped[place])


def consider(state: Replica, batch: Batch, k: int, threshold: int, held: bool) -> int:
    """Try to admit request ``k``; return a verdict. See :func:`schedule_waiting`."""
    request, connected = state.requests[k], state.connector.kind != NO_CONNECTOR
    if must_wait(state, request):
        return SKIP
    if is_refused_again(state, request, held):
        return refuse(state, k)
    hit = find_computed(state, request) if connected else read_cache(state, request)
    if hit == UNKNOWN:
        return SKIP
    num_replays = 0
    if state.kv.replay_window > 0 and request.own_blocks == NONE:
        hit = worth_replaying(state, hit)
        num_replays = num_replayed(state.kv, hit)
    computed = hit - num_replays
    if connected and state.connector.is_async:
        return load_first(state, k)
    num_tokens, num_drafts = first_tokens(state, request, computed, threshold, held)
    if num_tokens == NONE:
        state.refused = False
        return STOP
    if num_tokens == 0 and can_get_none(state):
        return SKIP
    if not allocate_first_slots(state, request, max(num_tokens - num_replays, 0), hit):
        return refuse(state, k)
    if request.num_tokens - computed > 1:
        state.carries_prefill = True
    admit(state, batch, k, num_tokens, computed)
    record_admitted(state, batch, k, num_drafts)
    state.budget -= num_tokens
    state.input_budget -= num_tokens + state.limits.num_draft_slots
    return ADMITTED


def can_get_none(state: Replica) -> bool:
    """Return True if a feature may leave a waiting request without tokens."""
    limits = state.limits
    return limits.has_encoder or limits.num_drafts > 0 or limits.has_features


def is_refused_again(state: Replica, request: Request, held: bool) -> bool:
    """Return True if a request is certainly refused, so that no look-up is needed."""
    limits = state.limits
    if held or state.connector.kind != NO_CONNECTOR or not limits.enable_chunked_prefill:
        return False
    if can_get_none(state) or limits.chunk_unit > 0:
        return False
    return has_pool(state.kv) and lacks_blocks(state.kv, request)


def refuse(state: Replica, k: int) -> int:
    """Refuse a request for which memory is short; return a verdict."""
    state.refused = state.head_lookup_failed = True
    state.totals.num_allocation_failures += 1
    record_refused(state, k)
    return STOP


def load_first(state: Replica, k: int) -> int:
    """Start the load of a request's KV, after which it can be admitted; return a verdict."""
    state.refused = not start_load(state, k)
    if not state.refused:
        return SKIP
    state.totals.num_allocation_failures += 1
    return STOP


def first_tokens(
    state: Replica, request: Request, computed: int, threshold: int, held: bool
) -> tuple[int, int]:
    """Return (tokens of a waiting request that a step computes, drafts among them).

    The tokens are NONE if neither this request nor a later one can be admitted.
    """
    limits, num_tokens, num_drafts = state.limits, request.num_tokens - computed, 0
    room = min(state.budget, state.input_budget - limits.num_draft_slots)
    if held and num_tokens > 1:
        return NONE, 0
    if is_padded(state, request, computed):
        num_drafts = limits.num_drafts
        num_tokens += num_drafts
        if num_tokens > room:
            return NONE, 0
    if 0 < threshold < num_tokens:
        num_tokens = threshold
    if num_tokens > room and not limits.enable_chunked_prefill:
        return NONE, 0
    return limit_first_tokens(state, request, computed, min(num_tokens, room), num_drafts)


def allocate_first_slots(state: Replica, request: Request, num_tokens: int, hit: int) -> bool:
    """Allocate slots for the first tokens that a request computes; False if there is no room."""
    if state.connector.kind != NO_CONNECTOR:
        admitted = admit_connected(state, request, num_tokens)
    elif state.limits.completes_all and not can_complete(state, request, hit):
        admitted = False
    else:
        admitted = admit_slots(state.kv, request, num_tokens, hit)
    state.refused = not admitted
    return admitted
