"""Hooks of the scheduler's optional features, which are called in vLLM's order.

Each feature's rules are in a file of their own. Every call here is guarded by the feature's switch,
so compiled code contains only the features that are on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.dispatch import Hook
from kvsim.engines.tensorrt_llm.rules.capacity import whole_units
from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.fairness import DLPM
from kvsim.records.record import NONE
from kvsim.records.request import WAITING_FOR_INPUT, WAITING_FOR_REMOTE_KVS
from kvsim.rules.blocks.checkpoint import num_to_state
from kvsim.rules.connector.prefills import record_prefill
from kvsim.rules.connector.scheduler import begin_connected, promote, record_connected
from kvsim.rules.queue import reorder
from kvsim.rules.vllm.dlpm import match_prefixes
from kvsim.rules.vllm.dropping import drops_stale
from kvsim.rules.vllm.encoder import (
    begin_encoding,
    choose_items,
    count_encoded,
    encode_items,
    release_all,
)
from kvsim.rules.vllm.grammar import lacks_grammar
from kvsim.rules.vllm.lora import add_lora, has_room_for_lora, record_switch
from kvsim.rules.vllm.speculation import add_drafts, expect_drafts, without_lookahead

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.records.engine import Batch, Replica
    from kvsim.records.part import Part
    from kvsim.records.request import Request


# The hooks of the features that are a class of kvsim.features.
is_prefill_held: Callable[[list[Part], Replica], bool] = Hook("holds_prefill")
begin_step_of: Callable[[list[Part], Replica], None] = Hook("begin_step")
is_held_back: Callable[[list[Part], Replica, Request], bool] = Hook("must_wait")
is_admission_over: Callable[[list[Part], Replica], bool] = Hook("ends_admission")
limit_by_features: Callable[[list[Part], Replica, Request, int], int] = Hook(
    "limit_tokens", passes=True
)
record_joined: Callable[[list[Part], Replica, Request], None] = Hook("record_admitted")
record_continued: Callable[[list[Part], Replica, Request], None] = Hook("record_planned")
end_step_of: Callable[[list[Part], Replica, Batch], None] = Hook("end_step")
sees_decodes: Callable[[list[Part], Replica], bool] = Hook("sees_decodes")


def begin_features(state: Replica) -> None:
    if state.connector.kind != NO_CONNECTOR:
        begin_connected(state)
    if state.limits.has_encoder:
        begin_encoding(state)
    if state.limits.has_features:
        begin_step_of(state.features, state)


def begin_admission(state: Replica) -> None:
    """Order the waiting queue before the admissions of a step."""
    if state.limits.fairness == DLPM and state.num_running < state.limits.max_active:
        match_prefixes(state)
    if state.limits.reranks and state.num_running < state.limits.max_active:
        reorder(state)


def must_wait(state: Replica, request: Request) -> bool:
    """Return True if a waiting request must be skipped for a reason other than memory."""
    if request.status == WAITING_FOR_REMOTE_KVS and not promote(state, request):
        return True
    if request.num_stale_tokens > 0 and not drops_stale(state, request):
        return True
    if state.limits.has_grammars and lacks_grammar(state, request):
        return True
    if state.limits.has_sessions and request.status == WAITING_FOR_INPUT:
        return True
    if state.limits.has_loras and not has_room_for_lora(state, request):
        return True
    return state.limits.has_features and is_held_back(state.features, state, request)


def limit_tokens(state: Replica, request: Request, computed: int, num_tokens: int) -> int:
    """Return the number of a running request's next tokens that the features allow in this step."""
    if state.limits.has_features:
        num_tokens = limit_by_features(state.features, state, request, num_tokens)
    if state.limits.has_encoder and num_tokens > 0:
        num_tokens = choose_items(state, request, computed, num_tokens)
    if state.kv.has_states:
        num_tokens = num_to_state(state, request, computed, num_tokens)
    if state.limits.num_drafts > 0 and num_tokens > 0:
        num_tokens = without_lookahead(state, request, computed, num_tokens)
    if state.limits.chunk_unit > 0:
        num_tokens = whole_units(state, request, computed, num_tokens)
    return num_tokens


def limit_first_tokens(
    state: Replica, request: Request, computed: int, num_tokens: int, num_drafts: int
) -> tuple[int, int]:
    """Return (tokens, drafts among them) of a waiting request that the features allow.

    The tokens are NONE if neither this request nor a later one can be admitted.
    """
    if state.limits.has_features:
        num_tokens = limit_by_features(state.features, state, request, num_tokens)
        if num_tokens == 0:
            return 0, 0
    if state.limits.has_encoder:
        num_tokens = choose_items(state, request, computed, num_tokens)
    if state.kv.has_states and num_tokens > 0:
        whole, num_tokens = num_tokens, num_to_state(state, request, computed, num_tokens)
        if num_tokens == 0:
            return NONE, 0
        if num_drafts > 0 and num_tokens < whole:
            num_tokens, num_drafts = 1, 0
    if state.limits.num_drafts > 0:
        num_tokens = without_lookahead(state, request, computed, num_tokens)
    if state.limits.chunk_unit > 0:
        num_tokens = whole_units(state, request, computed, num_tokens)
        if num_tokens < 1:
            return NONE, 0
    return num_tokens, num_drafts


def record_refused(state: Replica, k: int) -> None:
    """Record a refused request, and release its references in the encoder cache."""
    if state.limits.fairness > 0:
        state.shares.refused = k
    if state.limits.has_encoder:
        release_all(state, state.requests[k])


def record_admitted(state: Replica, batch: Batch, k: int, num_drafts: int) -> None:
    """Update the features after a request was admitted with its first tokens."""
    if state.connector.kind != NO_CONNECTOR:
        record_prefill(state, k)
    if state.limits.has_encoder:
        encode_items(state, k)
    if state.limits.num_drafts > 0:
        add_drafts(state, batch, num_drafts)
    if state.limits.has_loras:
        record_switch(state, state.requests[k])
        add_lora(state, state.requests[k])
    if state.limits.has_features:
        record_joined(state.features, state, state.requests[k])


def record_planned(state: Replica, batch: Batch, k: int, num_drafts: int) -> None:
    """Update the features after a running request's next tokens were scheduled."""
    if state.limits.has_encoder:
        encode_items(state, k)
    if state.limits.num_drafts > 0:
        add_drafts(state, batch, num_drafts)
        state.requests[k].num_drafts = 0
    if state.limits.has_features:
        record_continued(state.features, state, state.requests[k])


def end_features(state: Replica, batch: Batch) -> None:
    """Update the features after a step was scheduled."""
    if state.limits.has_encoder:
        count_encoded(state)
    if state.limits.num_drafts > 0:
        expect_drafts(state, batch)
    if state.limits.has_features:
        end_step_of(state.features, state, batch)
    if state.connector.kind != NO_CONNECTOR:
        record_connected(state, batch)
