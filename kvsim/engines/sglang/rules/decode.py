"""The decode batch: a slot for every running request, or fewer requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.scheduler import DECODE
from kvsim.engines.sglang.rules.held import extend_slots
from kvsim.engines.sglang.rules.retraction import decodes_fit, retract_decodes
from kvsim.engines.sglang.rules.speculation import plan_verification, reserve_slots
from kvsim.engines.sglang.rules.states import track_decode
from kvsim.engines.sglang.rules.tree.evict import evict_for
from kvsim.engines.sglang.rules.tree.slide import slide_decodes

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def drop_finishing(state: Replica) -> int:
    """Remove requests that get their last token from the batch in flight; return their number."""
    scheduler, kept = state.engines.sglang, 0
    if not scheduler.may_finish:
        return 0
    scheduler.may_finish = False
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        request, mine = state.requests[k], scheduler.progress[k]
        is_last = request.num_tokens + 1 >= mine.most
        if is_last and request.num_in_flight_tokens > 0:
            mine.is_listed = False
        else:
            scheduler.may_finish = scheduler.may_finish or is_last
            scheduler.running[kept] = k
            kept += 1
    dropped = scheduler.num_running - kept
    scheduler.num_running = kept
    if dropped > 0:
        scheduler.is_full = False
    return dropped


def build_decode(state: Replica, batch: Batch) -> None:
    """Batch the running requests; retract some if their next tokens do not fit."""
    scheduler, before = state.engines.sglang, state.engines.sglang.num_running
    finishing = drop_finishing(state)
    if scheduler.num_running == 0:
        return
    if decodes_fit(state):
        scheduler.ratio = max(scheduler.ratio - scheduler.decay, scheduler.min_ratio)
    elif finishing > 0:  # their slots are freed with their last token
        return
    else:
        retract_decodes(state)
    if scheduler.num_running < before:
        scheduler.is_full = False
    if scheduler.num_running > 0:
        add_decodes(state, batch)
        scheduler.last_mode = DECODE
        scheduler.processed += scheduler.running_tokens


def add_decodes(state: Replica, batch: Batch) -> None:
    """Allocate a slot per running request, after making room for a page each."""
    scheduler, tree = state.engines.sglang, state.kv.radix
    if tree.window > 0:
        slide_decodes(state)
    if scheduler.speculation.is_on:
        reserve_slots(state)
    else:
        evict_for(tree, scheduler.page_size * scheduler.num_running)
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        request, mine, entry = state.requests[k], scheduler.progress[k], batch.entries[batch.size]
        end = request.num_computed_tokens + 1
        if end <= request.max_computed_tokens:
            state.totals.num_recomputed_tokens += 1
        if not scheduler.speculation.is_on:
            extend_slots(tree, request, mine, end)
        if tree.has_states and scheduler.speculation.is_on:
            scheduler.held[k].hit_place = scheduler.held[k].next
        elif tree.has_states:
            track_decode(tree.states, scheduler.held[k], end, batch.num_extends > 0)
        batch.size += 1
        entry.request = k
        entry.num_tokens = 1
        entry.end = end
        entry.num_drafts = 0
        entry.unfinished = 0
        if scheduler.speculation.is_on:
            plan_verification(state, entry, mine, batch.num_extends > 0)
        request.num_in_flight_tokens += entry.num_tokens
