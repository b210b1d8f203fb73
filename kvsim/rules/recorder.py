"""Recording: exact integrals over time, memory samples, steps, token gaps, ended requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.kv import FORKED
from kvsim.rules.gaps import gap_bin
from kvsim.rules.memory_map import paint
from kvsim.rules.python import python_heap
from kvsim.rules.usage import is_refused, kv_usage, measure
from kvsim.rules.waiting_for_kv import num_queued

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica
    from kvsim.records.request import Request

#: Maximum number of memory samples per replica; a further sample first drops every other one.
MAX_MEMORY_SAMPLES = 4096


def num_waiting(state: Replica) -> int:
    """Return the number of unfinished requests that have arrived and are not running."""
    return num_queued(state) + state.num_swapped


def pass_time(state: Replica, to: float) -> None:
    """Advance the clock to ``to``, and add to the totals; the state is constant until then."""
    if not to > state.clock:
        return
    seconds = to - state.clock
    state.clock = to
    measure(state.kv)
    totals, usage, running = state.totals, state.kv.usage, state.num_running
    totals.token_states_seconds += usage.token_states * seconds
    totals.reservation_seconds += usage.reservation * seconds
    totals.internal_seconds += usage.internal * seconds
    totals.unallocated_seconds += usage.unallocated * seconds
    totals.cached_seconds += usage.cached * seconds
    totals.running_seconds += running * seconds
    if running > 0:
        totals.busy_seconds += seconds
    totals.waiting_seconds += num_waiting(state) * seconds
    if state.connector.kind != NO_CONNECTOR:
        totals.loading_seconds += state.connector.waiting_for_kv.length * seconds
    external = usage.external
    if is_refused(state):
        external += usage.unallocated
        totals.refused_seconds += seconds
        totals.running_while_refused_seconds += running * seconds
    totals.external_seconds += external * seconds
    if state.kv.manager == FORKED:
        totals.num_copied_blocks = state.kv.num_copied_blocks
        totals.entry_seconds += state.kv.num_entries * seconds
        totals.forked_seconds += state.kv.groups[0].num_used * seconds
    python_heap(state, seconds)
    share = kv_usage(state.kv)
    totals.usage_seconds += share * seconds
    totals.peak_usage = max(totals.peak_usage, share)
    totals.peak_running = max(totals.peak_running, running)


def record_step(state: Replica) -> None:
    """Record a scheduled step: its transfers, and a sample of the memory if one is due."""
    totals, moved = state.totals, state.kv.moved
    totals.fetched_bytes += moved.fetched
    totals.stored_bytes += moved.stored
    totals.paged_in_bytes += moved.paged_in
    totals.paged_out_bytes += moved.paged_out
    if totals.num_steps % state.stride == 0:
        if state.num_samples == MAX_MEMORY_SAMPLES:
            halve_samples(state)
        if totals.num_steps % state.stride == 0:
            sample(state)
    totals.num_steps += 1


def halve_samples(state: Replica) -> None:
    for k in range(MAX_MEMORY_SAMPLES // 2):
        old, new = state.samples[2 * k], state.samples[k]
        new.time = old.time
        new.replica = old.replica
        new.num_running = old.num_running
        new.num_waiting = old.num_waiting
        new.kv_usage = old.kv_usage
        new.token_states = old.token_states
        new.reservation = old.reservation
        new.internal = old.internal
        new.external = old.external
        new.free = old.free
        new.cached = old.cached
        for b in range(state.num_bins):
            state.maps[k * state.num_bins + b] = state.maps[2 * k * state.num_bins + b]
    state.num_samples = MAX_MEMORY_SAMPLES // 2
    state.stride *= 2


def sample(state: Replica) -> None:
    """Write a row of the memory table, for the state right after a step was scheduled."""
    measure(state.kv)
    usage, row, refused = state.kv.usage, state.samples[state.num_samples], is_refused(state)
    row.time = state.clock
    row.replica = state.index
    row.num_running = state.num_running
    row.num_waiting = num_waiting(state)
    row.kv_usage = kv_usage(state.kv)
    row.token_states = usage.token_states
    row.reservation = usage.reservation
    row.internal = usage.internal
    row.external = usage.external + (usage.unallocated if refused else 0)
    row.free = 0 if refused else usage.unallocated
    row.cached = usage.cached
    if state.num_bins > 0:
        paint(state, state.num_samples * state.num_bins)
    state.num_samples += 1


def write_step(state: Replica, batch: Batch, start: float, time: float) -> None:
    """Write a row of the steps table; the caller has checked that there is room."""
    row, num_tokens = state.steps[state.num_step_rows], 0
    for at in range(batch.size):
        num_tokens += batch.entries[at].num_tokens
    row.replica = state.index
    row.start_time = start
    row.duration = time
    row.num_scheduled_tokens = num_tokens
    row.num_running = state.num_running
    row.num_preempted = state.num_preempted
    row.flops = state.cost.flops if batch.size > 0 else 0.0
    row.bytes = state.cost.bytes if batch.size > 0 else 0.0
    state.num_step_rows += 1


def record_gap(state: Replica, seconds: float, num_tokens: int) -> None:
    """Count ``num_tokens`` tokens with a gap of ``seconds`` before each."""
    place = gap_bin(seconds)
    state.gaps[place] += num_tokens
    state.first_gap = min(state.first_gap, place)
    state.totals.peak_token_gap = max(state.totals.peak_token_gap, seconds)


def record_token(state: Replica, request: Request, now: float) -> None:
    """Record a request's first token, or the gap between its last token and the new one."""
    if math.isnan(request.last_token_time):
        request.first_token_time = now
        state.num_started += 1
        state.num_prompts_tokens += request.num_prompt_tokens
    else:
        record_gap(state, now - request.last_token_time, 1)


def write_row(state: Replica, request: Request, reason: int) -> None:
    """Write a request's row of the requests table."""
    row = state.rows[request.request_id]
    row.request_id = request.request_id
    row.replica = state.index
    row.arrival_time = request.arrival_time
    row.first_scheduled_time = request.first_scheduled_time
    row.first_token_time = request.first_token_time
    row.finish_time = request.finish_time
    row.num_prompt_tokens = request.num_prompt_tokens
    samples = request.num_samples if state.cost.has_samples else 1
    row.num_output_tokens = samples * (request.num_tokens - request.num_prompt_tokens)
    row.num_cached_tokens = request.num_cached_tokens
    row.num_preemptions = request.num_preemptions
    row.finish_reason = reason
