"""A pass of SGLang's loop, normal or overlapped, and the processing of its output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import NO_HOST
from kvsim.engines.sglang.records.scheduler import NO_BATCH
from kvsim.engines.sglang.rules.adapters import load_batch
from kvsim.engines.sglang.rules.checkpoint import checkpoint, release_request
from kvsim.engines.sglang.rules.decode import build_decode
from kvsim.engines.sglang.rules.extend import build_prefill
from kvsim.engines.sglang.rules.held import reuse_record
from kvsim.engines.sglang.rules.host.load import unlock_finished_copies
from kvsim.engines.sglang.rules.host.storage import end_read, next_read, publish_copies
from kvsim.engines.sglang.rules.pacing import count_pass, decodes_first
from kvsim.engines.sglang.rules.prefill import choose_prefills
from kvsim.engines.sglang.rules.speculation import commit
from kvsim.engines.sglang.rules.states import record_decode, record_verification
from kvsim.engines.sglang.rules.tree.pages import close_groups, open_groups
from kvsim.engines.sglang.rules.waiting import remove_from_waiting
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED
from kvsim.rules.abort import ABORTED, ENDED, REJECTED, end_request
from kvsim.rules.batch import batch_at
from kvsim.rules.price import price
from kvsim.rules.recorder import record_gap, record_step, write_step

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Entry, Replica


def pass_sglang(state: Replica) -> bool:
    """Schedule a batch and launch it after the one in flight; False if SGLang would crash."""
    batch, sent = batch_at(state, state.num_batches), state.kv.radix.num_sent
    state.engines.sglang.adapters.num_loaded = 0
    schedule_sglang(state, batch)
    state.engines.sglang.adapters.num_passes += 1
    count_sent(state, sent)
    if state.kv.radix.emits_events:
        publish_copies(state)
    if batch.size > 0:
        loading, batch.num_drafts = 0.0, state.engines.sglang.speculation.depth
        if state.engines.sglang.adapters.is_on:
            loading = load_batch(state, batch)
        time = price(state, batch) + loading
        start = max(state.clock, state.stage_free_time, state.kv.radix.held_until)
        batch.end = state.stage_free_time = max(start + time, state.kv.radix.loaded_at)
        if state.record_steps:
            write_step(state, batch, start, time)
        record_step(state)
        state.num_empty_steps = 0
        state.num_batches += 1
        state.must_complete = state.num_batches >= state.limits.depth
    elif state.num_batches > 0:
        state.must_complete = True
    else:
        rest(state)
    count_pass(state.engines.sglang)
    return not state.engines.sglang.is_dead


def schedule_sglang(state: Replica, batch: Batch) -> None:
    """Choose the next batch: a prefill if any request can be admitted, else a decode."""
    scheduler, tree = state.engines.sglang, state.kv.radix
    if tree.write_policy != NO_HOST:
        unlock_finished_copies(tree, state.clock)
    drop_chunk(state)
    insert_chunk(state)
    merge_last(state)
    drop_finished(state)
    scheduler.last_mode = NO_BATCH
    batch.num_extends = 0
    scheduler.num_preempted = 0
    if not decodes_first(scheduler) and choose_prefills(state):
        build_prefill(state, batch)
        scheduler.num_decodes_due = scheduler.decode_interval
    elif scheduler.num_running > 0:
        build_decode(state, batch)
    state.decode_only = False


def count_sent(state: Replica, before: int) -> None:
    """Count the bytes sent to the host since ``before`` tokens had been sent."""
    tree = state.kv.radix
    if tree.write_policy != NO_HOST:
        state.totals.stored_bytes += (tree.num_sent - before) * tree.token_bytes


def drop_chunk(state: Replica) -> None:
    """End the chunked request if it was aborted; its last chunk is lost."""
    k = state.engines.sglang.chunked
    if k == NONE or not state.engines.sglang.progress[k].is_aborted:
        return
    state.engines.sglang.chunked = NONE
    release_request(state, k, False)
    state.requests[k].finish_time = state.clock
    end_request(state, k, ABORTED)
    reuse_record(state, k)


def insert_chunk(state: Replica) -> None:
    """Insert the last chunk of the request that is being computed in chunks into the tree."""
    if state.engines.sglang.chunked == NONE:
        return
    k = state.engines.sglang.chunked
    mine = state.engines.sglang.progress[k]
    if mine.end > mine.prefix:
        checkpoint(state, k, mine.end, True)
        mine.prefix = mine.end


def merge_last(state: Replica) -> None:
    """Append the requests that continue from the last prefill batch to the running ones."""
    scheduler = state.engines.sglang
    if scheduler.num_last == 0:
        return
    kept = 0
    for place in range(scheduler.num_last):
        k = scheduler.last[place]
        ended = state.requests[k].status == FINISHED
        if ended or k == scheduler.chunked or k == scheduler.last_chunked:  # noqa: PLR1714
            scheduler.progress[k].is_listed = False
            reuse_record(state, k)
        else:
            scheduler.last[kept] = k
            kept += 1
    if kept < scheduler.num_last:
        scheduler.is_full = False
    if kept > 0 and scheduler.num_running == 0:
        scheduler.is_full = False
        scheduler.running_tokens = scheduler.last_tokens
    for place in range(kept):
        scheduler.running[scheduler.num_running + place] = scheduler.last[place]
    scheduler.num_running += kept
    scheduler.num_last = 0


def drop_finished(state: Replica) -> None:
    """Remove ended requests from the running batch."""
    scheduler, kept = state.engines.sglang, 0
    if not scheduler.has_ended:
        return
    scheduler.has_ended = False
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        if state.requests[k].status == FINISHED:
            scheduler.progress[k].is_listed = False
            reuse_record(state, k)
        else:
            scheduler.running[kept] = k
            kept += 1
    if kept < scheduler.num_running:
        scheduler.is_full = False
    scheduler.num_running = kept


def rest(state: Replica) -> None:
    """Handle an idle pass; with no request left, reset the ratio of expected outputs.

    SGLang hangs if not even an idle replica admits the head of the queue; here the head is
    rejected.
    """
    scheduler, tree = state.engines.sglang, state.kv.radix
    if tree.backups.count + tree.loads.count > 0:  # they lock memory that the head may need
        tree.held_until = max(tree.held_until, tree.out_free, tree.in_free)
        unlock_finished_copies(tree, tree.held_until)
        if tree.emits_events:
            publish_copies(state)
    elif state.storage.is_on and waits_for_read(state):
        state.resume_time = next_read(state)  # or an earlier arrival
    elif scheduler.adapters.num_loading > 0:
        state.resume_time = scheduler.adapters.ready[0]  # later loads end later
    elif scheduler.num_decodes_due > 0 and state.waiting.length > 0:
        return  # the next pass may prefill
    elif scheduler.num_running == 0 and scheduler.chunked == NONE and state.waiting.length > 0:
        reject_head(state)
    if scheduler.num_running == 0 and scheduler.chunked == NONE and state.waiting.length == 0:
        scheduler.ratio = scheduler.init_ratio
        scheduler.is_idle = True
        if not state.never_reject:  # the player of a case counts idle passes itself
            scheduler.num_decodes_due = 0


def reject_head(state: Replica) -> None:
    """Reject the head of the queue, which not even an idle replica admits."""
    k = state.waiting.head
    remove_from_waiting(state, k)
    if state.storage.is_on and state.storage.reads[k].num_tokens > 0:
        end_read(state, k, 0, state.clock)
    # A rejected request does not count as waiting.
    state.totals.waiting_seconds -= state.clock - state.requests[k].arrival_time
    end_request(state, k, REJECTED)
    reuse_record(state, k)


def note_step(state: Replica, k: int, entry: Entry, is_mixed: bool) -> None:
    """Record the state that a decode, or a verification, has written."""
    states, held = state.kv.radix.states, state.engines.sglang.held[k]
    if state.engines.sglang.speculation.is_on:
        end = state.requests[k].num_computed_tokens
        record_verification(states, held, end, 1 + entry.num_accepted)
    else:
        record_decode(states, held, entry.end, is_mixed)


def waits_for_read(state: Replica) -> bool:
    """Return True if a request waits for a read and can continue later."""
    now, time = max(state.clock, state.kv.radix.held_until), next_read(state)
    return now < time < math.inf


def loop_has_work(state: Replica) -> bool:
    """Return True if a pass of the loop has work."""
    return state.waiting.length > 0 or state.num_running > 0 or not state.engines.sglang.is_idle


def update_from_sglang_output(state: Replica, batch: Batch) -> None:
    """Append a token to every request of a finished batch; freed slots return as one block."""
    scheduler, before, now = state.engines.sglang, state.last_token_time, batch.end
    num_regular, num_sampled, sent = 0, 0, state.kv.radix.num_sent
    open_groups(state.kv.radix)
    for at in range(batch.size):
        entry = batch.entries[at]
        k = entry.request
        request, mine = state.requests[k], scheduler.progress[k]
        request.num_in_flight_tokens -= entry.num_tokens
        if request.status == FINISHED:
            reuse_record(state, k)
            continue
        if mine.is_retracted:
            continue
        if at < batch.num_extends and mine.num_middle > 0:
            mine.num_middle -= 1
            continue
        gained = 1
        if scheduler.speculation.is_on and at >= batch.num_extends:
            gained = commit(state, k, entry)
        request.num_tokens += gained
        num_sampled += gained
        if math.isnan(request.last_token_time):
            request.first_token_time = now
            state.num_started += 1
            state.num_prompts_tokens += request.num_prompt_tokens
        elif request.last_token_time == before:
            num_regular += 1
        else:
            record_gap(state, now - request.last_token_time, 1)
        request.last_token_time = now
        if request.num_tokens + 1 >= mine.most:
            scheduler.may_finish = True
        if state.kv.radix.has_states and at >= batch.num_extends:
            note_step(state, k, entry, batch.num_extends > 0)
        if request.num_tokens >= request.end:
            scheduler.has_ended = True
            release_request(state, k, True)
            request.finish_time = now
            end_request(state, k, ABORTED if mine.is_aborted else ENDED)
            reuse_record(state, k)
        elif at < batch.num_extends:
            checkpoint(state, k, entry.end, True)
            mine.prefix = entry.end
    close_groups(state.kv.radix)
    count_sent(state, sent)
    if num_regular > 0:
        record_gap(state, now - before, num_regular)
    state.num_generated_tokens += num_sampled
    if num_sampled > 0:
        scheduler.num_fruitless = 0
        state.last_token_time = now
