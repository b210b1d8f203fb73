"""Requests that the front end rejects (vLLM's max_num_queued_reqs and max_num_queued_tokens).

When a request arrives, the front end counts the unfinished requests, waiting or running, and the
prompt tokens of requests without a first token. For a request that arrives during a step, the
requests that end with the step still count.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.request import FINISHED

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def is_limited(state: Replica) -> bool:
    """Return True if the front end has a limit."""
    return state.limits.max_num_queued_reqs > 0 or state.limits.max_num_queued_tokens > 0


def has_place(state: Replica, k: int) -> bool:
    """Return True if the front end accepts a new request."""
    limits, new, in_flight, tokens = state.limits, state.requests[k], 0, 0
    if new.arrival_time < state.last_end_time:
        in_flight, tokens = state.num_ended_last, state.num_tokens_last
    for other in range(state.num_requests):
        request = state.requests[other]
        if other != k and request.status != FINISHED:
            in_flight += 1
            if not request.first_token_time <= new.arrival_time:
                tokens += request.num_prompt_tokens
    if 0 < limits.max_num_queued_reqs <= in_flight:
        return False
    return limits.max_num_queued_tokens == 0 or tokens < limits.max_num_queued_tokens


def record_last_end(state: Replica, request: Request) -> None:
    """Count the requests that end now, and the prompt tokens of those without an earlier token.

    The counts restart when the clock has advanced since the last end.
    """
    if state.clock > state.last_end_time:
        state.last_end_time = state.clock
        state.num_ended_last = state.num_tokens_last = 0
    state.num_ended_last += 1
    if math.isnan(request.first_token_time) or request.first_token_time == state.clock:
        state.num_tokens_last += request.num_prompt_tokens
