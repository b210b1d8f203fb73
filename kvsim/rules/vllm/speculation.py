"""Speculative decoding: the next step of a request verifies its drafts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.kv import PAGED
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED, RUNNING
from kvsim.rules.blocks.keys import mix

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Entry, Replica
    from kvsim.records.request import Request


def without_lookahead(state: Replica, request: Request, computed: int, num_tokens: int) -> int:
    """Shorten a chunk after which too few known tokens remain for the drafter's lookahead."""
    lookahead = state.limits.num_prefill_lookahead_tokens
    rest = request.num_tokens - computed - num_tokens
    if 0 < rest < lookahead:
        return max(num_tokens - (lookahead - rest), 0)
    return num_tokens


def is_padded(state: Replica, request: Request, hit: int) -> bool:
    """Return True if an admission of one token gets drafts, as all decodes of the batch have."""
    limits = state.limits
    if limits.num_drafts == 0 or limits.num_draft_rows > 0 or request.num_tokens - hit != 1:
        return False
    if state.carries_chunk or hit + 1 + limits.num_drafts + 1 > limits.max_model_len:
        return False
    return state.has_scheduled_running or hit > 0


def add_drafts(state: Replica, batch: Batch, num_drafts: int) -> None:
    """Set the number of drafts of the entry added last."""
    entry = batch.entries[batch.size - 1]
    request = state.requests[entry.request]
    entry.num_drafts = num_drafts
    if state.limits.asynchronous and entry.unfinished == 0:
        request.num_placeholders += num_drafts


def drafts_after(state: Replica, batch: Batch) -> int:
    """Return the number of drafts per request to propose after a step, by its batch size."""
    for row in range(state.limits.num_draft_rows):
        first, last = state.draft_rows[3 * row], state.draft_rows[3 * row + 1]
        if first <= batch.size <= last:
            return state.draft_rows[3 * row + 2]
    return state.limits.num_drafts


def expect_drafts(state: Replica, batch: Batch) -> None:
    """Set the drafts to propose after the step just scheduled.

    Under asynchronous scheduling, also count them in the requests before they exist.
    """
    batch.num_drafts = drafts_after(state, batch)
    state.num_next_drafts = batch.num_drafts
    if not state.limits.asynchronous:
        return
    for at in range(batch.size):
        if batch.entries[at].unfinished == 0:
            state.requests[batch.entries[at].request].num_drafts = batch.num_drafts


def set_proposed_drafts(state: Replica, batch: Batch) -> None:
    """Set the number of drafts of a step's requests to what was proposed after the step."""
    for at in range(batch.size):
        request = state.requests[batch.entries[at].request]
        if request.status == FINISHED:
            continue
        if request.is_chunk > 0:
            request.num_drafts = 0
        else:
            request.num_drafts = next_drafts(state, request.request_id, batch.num_drafts)


def next_drafts(state: Replica, row: int, most: int) -> int:
    """Return the number of drafts proposed for a request: as recorded in the trace, or ``most``."""
    trace = state.trace
    if not trace.has_drafts:
        return most
    first, stop = trace.draft_offsets[row], trace.draft_offsets[row + 1]
    if first == stop:
        return most
    drafts = trace.drafts[first + trace.next_draft[row] % (stop - first)]
    trace.next_draft[row] += 1
    return min(drafts, state.limits.num_drafts)


def verify(state: Replica, entry: Entry, request: Request) -> int:
    """Return the number of accepted drafts of an entry, and add it to the totals."""
    entry.num_accepted = num_recorded(state, entry, request.request_id)
    if entry.num_accepted == NONE:
        entry.num_accepted = draw_accepted(
            state, request.request_id, request.num_tokens, entry.num_drafts
        )
    state.totals.num_drafts += 1
    state.totals.num_draft_tokens += entry.num_drafts
    state.totals.num_accepted_tokens += entry.num_accepted
    return entry.num_accepted


def num_recorded(state: Replica, entry: Entry, row: int) -> int:
    """Return the number of accepted drafts that the trace records, or NONE."""
    trace = state.trace
    if not trace.has_accepts or trace.accept_offsets[row] == trace.accept_offsets[row + 1]:
        return NONE
    first, stop = trace.accept_offsets[row], trace.accept_offsets[row + 1]
    accepted = trace.accepts[first + trace.next_accept[row] % (stop - first)]
    trace.next_accept[row] += 1
    return min(accepted, entry.num_drafts)


def draw_accepted(state: Replica, row: int, num_tokens: int, most: int) -> int:
    """Draw the number of accepted drafts, at most ``most``.

    The draw depends only on the request and its token count, so it is the same under two
    configurations.
    """
    key = mix(mix(state.limits.draw_seed, row), num_tokens)
    share, rate, chance, accepted = key * 2.0**-63, -1.0, 1.0, 0
    if state.trace.has_rates:
        rate = state.trace.accept_rate[row]
    while accepted < most:
        chance = chance * rate if rate >= 0.0 else state.accept_rates[accepted]
        if share >= chance:
            break
        accepted += 1
    return accepted


def roll_back(state: Replica, request: Request, num_tokens: int) -> None:
    """Roll back the counts of rejected drafts; their slots stay allocated."""
    if request.num_computed_tokens > 0:
        request.num_computed_tokens -= num_tokens
    if request.status == RUNNING and state.kv.manager == PAGED:
        filled = min(request.num_computed_tokens, request.end - 1)
        state.kv.num_filled += filled - request.num_filled
        request.num_filled = filled
