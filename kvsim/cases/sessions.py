"""Sessions of a case: requests that continue with further inputs at given steps."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.cases.connector import held_names
from kvsim.cases.player import Feature, add
from kvsim.cases.rows import BETWEEN_ARRIVALS, Span, num_tokens, offsets, span
from kvsim.cases.upkeep import show_numbers
from kvsim.records.connector import SESSIONS
from kvsim.records.request import FINISHED, WAITING_FOR_INPUT
from kvsim.rules.vllm.sessions import CLOSED, OPEN, continue_session
from kvsim.sched.connector import make_connector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.cases.case import CaseRequest, Update, Workload
    from kvsim.cases.player import Entry
    from kvsim.engine.replica import Replica
    from kvsim.sched.scheduler import SchedulerConfig


def has_sessions(workload: Workload) -> bool:
    """Return True if any request gets further inputs."""
    return any(request.updates for request in workload.requests)


def updates_of(request: CaseRequest) -> list[Update]:
    """Return the updates in steps after a request's arrival; earlier updates have no effect."""
    return [update for update in request.updates if update[0] > request.arrival_step]


def add_sessions(
    requests: Sequence[CaseRequest], lists: dict[str, Any], segments: list[Span]
) -> None:
    """Add the inputs of sessions, and room for later segments, to both lists. Mutates."""
    inputs = [[u for u in updates_of(request) if len(u) > 1] for request in requests]
    flat = [(row, update) for row, own in enumerate(inputs) for update in own]
    lists |= {
        "session": [OPEN * bool(request.updates) for request in requests],
        "session_stop": [r.stop_at if isinstance(r.stop_at, int) else 0 for r in requests],
        "num_inputs": [0] * len(requests),
        "next_input": [0] * len(requests),
        "input_offsets": offsets(inputs),
        "input_tokens": [num_tokens(update[1]) for _, update in flat],
        "input_max_tokens": [update[2] for _, update in flat],
        "input_time": [update[0] + row * BETWEEN_ARRIVALS for row, update in flat],
        "input_segments": offsets((update[1] for _, update in flat), len(segments)),
    }
    segments += [span(piece) for _, update in flat for piece in update[1]]
    rooms = [_room(*both) for both in zip(requests, inputs, strict=True)]
    lists["session_area"] = offsets(map(range, rooms), len(segments))[:-1]
    segments += [(0, 0, 1)] * sum(rooms)


def _room(request: CaseRequest, inputs: Sequence[Any]) -> int:
    """Return the largest number of segments of a session, with one for each output token."""
    turns = [(request.segments, request.max_tokens), *(update[1:] for update in inputs)]
    return sum(len(segments) + most for segments, most in turns) if inputs else 0


def with_second_queue(limits: SchedulerConfig) -> SchedulerConfig:
    """Return the settings with a second queue for requests that wait with their blocks."""
    return replace(limits, kv_transfer=make_connector(SESSIONS))


class Sessions(Feature):
    """Gives sessions their inputs, and logs the sessions that wait for an input.

    Parameters
    ----------
    replica : replica to which no request has arrived yet
    requests : the requests, by row
    """

    def __init__(self, replica: Replica, requests: Sequence[CaseRequest]) -> None:
        self._replica, self._requests = replica, requests
        state = replica.state
        state.limits.has_sessions = True
        show_numbers(state)
        state.connector.drops_stale = state.connector.has_fence = False

    def arrive(self, step: int) -> list[str | int]:
        """Apply the updates of a step; return the names of sessions that they end at once."""
        state, ended = self._replica.state, []
        for row, request in enumerate(self._requests):
            for update in updates_of(request):
                if update[0] != step:
                    continue
                place = self._place(row)
                if len(update) > 1:
                    state.trace.num_inputs[row] += 1
                    if place is not None:
                        continue_session(state, place)
                    continue
                state.trace.session[row] = CLOSED
                waits = place is not None and state.requests[place].status == WAITING_FOR_INPUT
                if waits and self._replica.abort(row):
                    ended.append(request.id)
        return ended

    def _place(self, row: int) -> int | None:
        state = self._replica.state
        for k in range(state.num_requests):
            if state.requests[k].request_id == row and state.requests[k].status != FINISHED:
                return k
        return None

    def rests(self) -> bool:
        """Return True if every unfinished request waits for an input."""
        state = self._replica.state
        return state.num_outstanding == state.num_idle and state.num_batches == 0

    def processed(self, entry: Entry) -> None:
        """Add the sessions that wait for an input. Mutates the entry."""
        names = {row: request.id for row, request in enumerate(self._requests)}
        add(entry, h=held_names(self._replica.state, names) or None)
