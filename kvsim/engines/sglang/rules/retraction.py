"""Retraction: when the decodes do not fit, those with the fewest outputs lose their slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.checkpoint import release_request
from kvsim.engines.sglang.rules.held import reuse_record
from kvsim.engines.sglang.rules.speculation import verifications_fit
from kvsim.engines.sglang.rules.tree.evict import evict_for
from kvsim.engines.sglang.rules.tree.pages import num_free_slots
from kvsim.engines.sglang.rules.waiting import enter_queue, sort_listed
from kvsim.records.request import PREEMPTED
from kvsim.rules.abort import FAILED, end_request

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: Decode steps that must fit after a retraction (SGLang's retract steps).
RETRACT_STEPS = 20


def decodes_fit(state: Replica) -> bool:
    """Evict for the running requests that need a page; return True if all get one."""
    scheduler, tree, num_pages = state.engines.sglang, state.kv.radix, 0
    if scheduler.speculation.is_on:
        return verifications_fit(state)
    if num_free_slots(tree) >= scheduler.page_size * scheduler.num_running:
        return True  # a page for each request
    for place in range(scheduler.num_running):
        computed = state.requests[scheduler.running[place]].num_computed_tokens
        num_pages += computed % scheduler.page_size == 0
    needed = scheduler.page_size * num_pages
    evict_for(tree, needed)
    return num_free_slots(tree) >= needed


def free_for_recompute(state: Replica, k: int, num_left: int) -> None:
    """Free all slots of a request, which is recomputed later, and make room for the others."""
    request, mine = state.requests[k], state.engines.sglang.progress[k]
    request.max_computed_tokens = max(request.max_computed_tokens, request.num_computed_tokens)
    release_request(state, k, False)
    mine.tried_prefix = 0
    mine.is_retracted = True
    mine.is_listed = False
    request.status = PREEMPTED
    request.num_preemptions += 1
    state.preempted[state.num_preempted] = k
    state.num_preempted += 1
    state.totals.num_preemptions += 1
    evict_for(state.kv.radix, RETRACT_STEPS * num_left)


def retract_decodes(state: Replica) -> None:
    """Retract requests until the others fit; raise the ratio to their observed need."""
    scheduler = state.engines.sglang
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        request, mine = state.requests[k], scheduler.progress[k]
        mine.first = 0.0
        if scheduler.retracts_by_priority:
            mine.first = float(request.priority * scheduler.sign)
        mine.second = -float(request.num_output_tokens)
        mine.third = request.num_prompt_tokens
        scheduler.order_now[place] = k
    sort_listed(state, scheduler.num_running)
    for place in range(scheduler.num_running):
        scheduler.running[place] = scheduler.order_now[place]
    fits, first = False, state.num_preempted
    while not fits and scheduler.num_running > 1:
        scheduler.num_running -= 1
        free_for_recompute(state, scheduler.running[scheduler.num_running], scheduler.num_running)
        fits = decodes_fit(state)
    for place in range(first, state.num_preempted):
        enter_queue(state, state.preempted[place])
    if not fits and not decodes_fit(state):
        fail_last(state)
    outputs, max_new = 0, 0
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        outputs += state.requests[k].num_output_tokens
        max_new += scheduler.progress[k].max_new
    expected = outputs + RETRACT_STEPS * scheduler.num_running
    scheduler.ratio = min(1.0, expected / (max_new + 1))


def fail_last(state: Replica) -> None:
    """Fail the only running request, which gets no slot even alone."""
    k = state.engines.sglang.running[0]
    state.engines.sglang.num_running = 0
    state.engines.sglang.progress[k].is_listed = False
    release_request(state, k, False)
    state.requests[k].finish_time = state.clock
    end_request(state, k, FAILED)
    reuse_record(state, k)
