"""vLLM's streaming input: a session is a request that continues with further inputs.

When a turn ends, output in flight is dropped and no block is freed. When the next input arrives,
the last sampled token is dropped, the outputs before it become prompt, and the new tokens follow.
Until then the request waits in the second queue, with its blocks and its batch slot.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.records.request import PREEMPTED, RUNNING, WAITING, WAITING_FOR_INPUT
from kvsim.rules.abort import remove_from_running, reset_shortcuts
from kvsim.rules.connector.pinned import pin_request
from kvsim.rules.queue import enqueue
from kvsim.rules.vllm.dropping import drop_in_flight_output, move_end, reset_dropping, turn_end
from kvsim.rules.waiting_for_kv import hold_last, remove_from_queue

if TYPE_CHECKING:
    from kvsim.records.engine import Replica, Trace
    from kvsim.records.request import Request, Segment

#: A request has no session, may get further inputs, or has got the last input.
NO_SESSION, OPEN, CLOSED = 0, 1, 2


def goes_on(state: Replica, request: Request) -> bool:
    """Return True if a request has, or may get, another input after its turn."""
    trace, row = state.trace, request.request_id
    return trace.session[row] == OPEN or trace.next_input[row] < trace.num_inputs[row]


def end_turn(state: Replica, k: int) -> None:
    """End a turn: the request keeps its blocks, and its output in flight will be dropped."""
    request, trace = state.requests[k], state.trace
    if request.status != RUNNING:  # preempted while its last token was in flight
        remove_from_queue(state, k)
        state.num_deferred -= request.is_deferred
        request.is_deferred = 0
    else:
        request.num_computed_tokens -= request.num_placeholders
        reset_dropping(state, request)
        request.num_stale_tokens = request.num_in_flight_tokens
        drop_in_flight_output(state, request)
        remove_from_running(state, k)
        pin_request(state.kv, request)
    request.num_placeholders = 0
    request.num_drafts = 0
    request.is_chunk = 0
    request.status = WAITING_FOR_INPUT
    state.num_idle += 1
    if trace.next_input[request.request_id] < trace.num_inputs[request.request_id]:
        append_input(state, request)


def queue_turns(state: Replica, num_turns: int) -> None:
    """Queue the requests that ended a turn with a step, in the order of the step."""
    for at in range(num_turns):
        k = state.skipped[at]
        if state.requests[k].num_computed_tokens > 0:
            hold_last(state, k)
        else:
            enqueue(state, k)
    if num_turns > 0:
        reset_shortcuts(state)


def append_input(state: Replica, request: Request) -> None:
    """Continue a request with its next input, which has arrived."""
    trace, row = state.trace, request.request_id
    place = trace.input_offsets[row] + trace.next_input[row]
    trace.next_input[row] += 1
    kept = max(request.num_output_tokens - 1, 0)
    extend_prompt(trace, request, kept, place)
    if request.own_blocks != NONE:
        state.kv.request_blocks[
            request.own_blocks
        ].owner = NONE  # keys are recomputed; the first ones stay the same
    request.num_prompt_tokens += kept + trace.input_tokens[place]
    request.num_tokens = request.num_prompt_tokens
    request.arrival_time = trace.input_time[place]
    trace.asked_tokens[row] = trace.input_max_tokens[place]
    move_end(state, request, turn_end(state, request))
    request.status = PREEMPTED if request.num_preemptions > 0 else WAITING
    state.num_idle -= 1


def extend_prompt(trace: Trace, request: Request, kept: int, place: int) -> None:
    """Append the first ``kept`` output tokens and input ``place`` to a prompt's segments."""
    area, count = trace.session_area[request.request_id], request.num_segments
    if request.first_segment != area:
        for at in range(count):
            copy_segment(trace.segments[request.first_segment + at], trace.segments[area + at])
        request.first_segment = area
    first = trace.number_offsets[request.request_id]
    for at in range(kept):
        segment = trace.segments[area + count]
        segment.content_id = request.output_content_id
        segment.start = trace.numbers[first + at]
        segment.num_tokens = 1
        count += 1
    for at in range(trace.input_segments[place], trace.input_segments[place + 1]):
        copy_segment(trace.segments[at], trace.segments[area + count])
        count += 1
    request.num_segments = count


def copy_segment(old: Segment, new: Segment) -> None:
    new.content_id = old.content_id
    new.start = old.start
    new.num_tokens = old.num_tokens


def continue_session(state: Replica, k: int) -> None:
    """Continue a session with an input that has just arrived, if it waits for one."""
    if state.requests[k].status == WAITING_FOR_INPUT:
        append_input(state, state.requests[k])
        reset_shortcuts(state)
