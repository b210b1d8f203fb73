"""The record of a new request: its fields from the trace, with nothing computed yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.engine import Replica, Trace
    from kvsim.records.request import Request


def make_request(state: Replica, request: Request, place: int) -> None:
    """Fill a record with the next arrival; max_model_len limits its output."""
    trace = state.trace
    request.reset()
    describe(state, request, trace.ids[trace.next])
    if trace.has_carried:
        request.num_tokens += trace.carried[request.request_id]
    request.place = place
    request.arrival_time = trace.arrival_time[trace.next]


def known_end(trace: Trace, request: Request) -> int:
    """Return the token count at which the scheduler expects a request to end."""
    if not trace.has_eos:
        return request.end
    return request.num_prompt_tokens + trace.asked_tokens[request.request_id]


def describe(state: Replica, request: Request, row: int) -> None:
    """Write the fields of a trace row into a request record."""
    trace = state.trace
    prompt = trace.num_prompt_tokens[row]
    request.request_id = row
    request.num_prompt_tokens = prompt
    request.num_tokens = prompt
    request.max_tokens = min(trace.max_tokens[row], state.limits.max_model_len - prompt)
    request.end = prompt + request.max_tokens
    request.known_end = known_end(trace, request)
    request.segments = trace.segments
    request.first_segment = trace.segment_offsets[row]
    request.num_segments = trace.segment_offsets[row + 1] - request.first_segment
    request.output_content_id = trace.output_content_id[row]
    request.priority = trace.priority[row]
    request.cache_salt = trace.cache_salt[row]
    request.num_samples = trace.num_samples[row] if trace.has_samples else 1
    request.id_rank = trace.id_rank[row] if trace.has_ranks else row
    if trace.has_loras:
        request.lora = trace.lora[row]
