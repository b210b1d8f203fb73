"""Building a prefill batch: rows, slots, and the decodes that are mixed in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.scheduler import EXTEND, MIXED
from kvsim.engines.sglang.rules.decode import add_decodes, drop_finishing
from kvsim.engines.sglang.rules.held import allocate_rows, extend_slots
from kvsim.engines.sglang.rules.retraction import decodes_fit
from kvsim.engines.sglang.rules.states import (
    allocate_missing_states,
    room_for_states,
    track_prefill,
)
from kvsim.engines.sglang.rules.tree.evict import evict_for
from kvsim.engines.sglang.rules.tree.pages import num_free_slots
from kvsim.engines.sglang.rules.tree.slide import slide_prefills
from kvsim.records.record import NONE
from kvsim.records.request import RUNNING

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def build_prefill(state: Replica, batch: Batch) -> None:
    """Batch the admitted requests, the chunked one first; decodes join if they are mixed in."""
    scheduler, tree = state.engines.sglang, state.kv.radix
    needed, num_new = 0, 0
    for place in range(scheduler.num_admitted):
        mine = scheduler.progress[scheduler.admitted[place]]
        needed += mine.end - mine.prefix
        num_new += mine.row == NONE
    if tree.has_states:
        room_for_states(state)
    allocate_rows(state, num_new)
    if tree.has_states:
        allocate_missing_states(state)
    if scheduler.page_size > 1:
        needed += scheduler.page_size * scheduler.num_admitted
    if tree.window > 0 and not tree.enabled:
        slide_prefills(state)
    evict_for(tree, needed)
    scheduler.num_last = 0
    scheduler.last_tokens = 0
    for place in range(scheduler.num_admitted):
        add_prefill(state, batch, scheduler.admitted[place])
    batch.num_extends = batch.size
    if scheduler.chunked != NONE:
        scheduler.progress[scheduler.chunked].num_middle += 1
    scheduler.last_mode = EXTEND
    scheduler.last_chunked = scheduler.chunked
    if scheduler.mixes and scheduler.chunk_size > 0 and scheduler.num_running > 0:
        mix_decodes(state, batch)
    scheduler.processed += scheduler.last_tokens


def add_prefill(state: Replica, batch: Batch, k: int) -> None:
    """Allocate the slots of a request in the batch."""
    scheduler, tree = state.engines.sglang, state.kv.radix
    request, mine = state.requests[k], scheduler.progress[k]
    if request.num_computed_tokens == 0:  # new in the batch, after its matched prefix
        request.num_computed_tokens = mine.prefix
        request.status = RUNNING
        mine.is_retracted = False
        if math.isnan(request.first_scheduled_time):
            request.first_scheduled_time = state.clock
            request.num_cached_tokens = mine.prefix
    if request.num_tokens + 1 >= mine.most:
        scheduler.may_finish = True
    mine.num_known = request.num_tokens
    mine.has_decoded = False
    mine.num_extends += 1
    mine.num_on_device = request.num_output_tokens + 1
    size = scheduler.page_size
    num_pages = -(-mine.end // size) - (mine.num_shared // size + mine.num_pages)
    if num_pages * size > num_free_slots(tree):
        scheduler.is_dead = True
        return
    extend_slots(tree, request, mine, mine.end)
    if tree.has_states:
        track_prefill(tree.states, mine, scheduler.held[k])
    num_tokens = mine.end - mine.prefix
    if mine.prefix < request.max_computed_tokens:
        recomputed = min(mine.end, request.max_computed_tokens) - mine.prefix
        state.totals.num_recomputed_tokens += recomputed
    entry = batch.entries[batch.size]
    batch.size += 1
    entry.request = k
    entry.num_tokens = num_tokens
    entry.end = mine.end
    entry.num_drafts = 0
    entry.unfinished = int(k == scheduler.chunked)
    request.num_in_flight_tokens += num_tokens
    mine.is_listed = True
    scheduler.last[scheduler.num_last] = k
    scheduler.num_last += 1
    scheduler.last_tokens += num_tokens


def mix_decodes(state: Replica, batch: Batch) -> None:
    """Let the running requests decode in a prefill batch, if all of them fit."""
    scheduler = state.engines.sglang
    is_last = scheduler.may_finish  # a prompt in this batch, or a running request, may end next
    drop_finishing(state)
    scheduler.may_finish = scheduler.may_finish or is_last
    if scheduler.num_running == 0 or not decodes_fit(state):
        return
    add_decodes(state, batch)
    for place in range(scheduler.num_running):
        scheduler.last[scheduler.num_last] = scheduler.running[place]
        scheduler.num_last += 1
    scheduler.last_tokens += scheduler.num_running
    scheduler.num_running = 0
    scheduler.last_mode = MIXED
