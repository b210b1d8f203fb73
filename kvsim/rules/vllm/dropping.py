"""Stale output: output in flight at a preemption, which some requests drop.

Usually stale output is delivered. It is dropped after a reset of the prefix cache, and by a KV
producer, which recomputes the whole KV for another replica. Recorded cases number output tokens in
the order in which they were sampled, so the numbers of dropped tokens are skipped.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.record import NONE
from kvsim.rules.arrival import known_end
from kvsim.rules.blocks.paged import uncount

if TYPE_CHECKING:
    from kvsim.records.engine import Entry, Replica
    from kvsim.records.request import Request


def drops_stale(state: Replica, request: Request) -> bool:
    """Return True if a request drops its stale output instead of waiting for it."""
    if state.connector.drops_stale:
        return True
    return state.limits.has_drops and state.trace.drops_stale[request.request_id] > 0


def drop_in_flight_output(state: Replica, request: Request) -> None:
    """Mark a request that was just preempted to drop its output in flight."""
    if request.num_stale_tokens > 0:
        state.trace.drops_stale[request.request_id] = 1


def reset_dropping(state: Replica, request: Request) -> None:
    """Remove the mark of :func:`drop_in_flight_output`, unless stale output is in flight."""
    if request.num_stale_tokens == 0:
        state.trace.drops_stale[request.request_id] = 0


def is_void(state: Replica, request: Request, entry: Entry, stale: bool, num_tokens: int) -> bool:
    """Return True if a step's output is not delivered to a request: stale, or based on bad KV."""
    connector = state.connector
    if stale:
        if not drops_stale(state, request):
            return False
        if entry.unfinished == 0 and state.limits.has_drops:
            number_dropped(state, request, num_tokens)
        return True
    if connector.kind == NO_CONNECTOR or connector.skips[request.request_id] == 0:
        return False
    if entry.unfinished == 0 and request.num_placeholders > 0:
        request.num_placeholders -= 1 + entry.num_drafts
    return True


def number_outputs(state: Replica, request: Request, num_tokens: int) -> None:
    """Number the next output tokens of a request in the order in which they are sampled."""
    trace, row = state.trace, request.request_id
    first = trace.number_offsets[row] + request.num_output_tokens
    for at in range(first, first + num_tokens):
        trace.numbers[at] = trace.next_number[row]
        trace.next_number[row] += 1


def number_dropped(state: Replica, request: Request, num_tokens: int) -> None:
    """Skip the numbers of dropped tokens, and move the end if a stop token was dropped."""
    trace, row = state.trace, request.request_id
    trace.next_number[row] += num_tokens
    if state.limits.has_sessions:
        move_end(state, request, turn_end(state, request))
    if state.limits.has_sessions or not trace.has_eos:
        return
    stop = trace.max_tokens[row]
    num_dropped = trace.next_number[row] - request.num_output_tokens
    left = stop - num_dropped if trace.next_number[row] < stop else trace.asked_tokens[row]
    end = min(request.num_prompt_tokens + left, state.limits.max_model_len)
    if end != request.end and stop < trace.asked_tokens[row]:
        move_end(state, request, end)


def turn_end(state: Replica, request: Request) -> int:
    """Return the token count at which a session's turn ends, by length or by a stop token."""
    trace, row = state.trace, request.request_id
    left, before = trace.asked_tokens[row], trace.next_number[row] - request.num_output_tokens
    if trace.session_stop[row] > trace.next_number[row]:
        left = min(left, trace.session_stop[row] - before)
    return min(request.num_prompt_tokens + left, state.limits.max_model_len)


def move_end(state: Replica, request: Request, end: int) -> None:
    """Set the token count at which a request ends, and update the sums that depend on it."""
    kv = state.kv
    counts = request.own_blocks != NONE and not kv.request_blocks[request.own_blocks].retired
    if counts:
        uncount(kv, request, kv.request_blocks[request.own_blocks], 1)
    request.end = end
    request.known_end = known_end(state.trace, request)
    request.next_bookkeeping_at = 0
    if counts:
        request.num_filled = min(request.num_computed_tokens, request.max_slots)
        uncount(kv, request, kv.request_blocks[request.own_blocks], -1)
