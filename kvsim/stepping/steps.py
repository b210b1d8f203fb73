"""Runs a replica step by step, and returns the batch and the results of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.records.connector import NO_CONNECTOR
from kvsim.records.engine import COMPLETED, SCHEDULED
from kvsim.records.memory import Views, head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.observers import Observer
    from kvsim.engine.replica import Replica
    from kvsim.results.tables import FinishReason


@dataclass(frozen=True)
class EngineStep:
    """One step of an engine, from its schedule to its output.

    The dictionaries are keyed by request id, with sums over the samples of a request.

    Attributes
    ----------
    time : start of the step on the GPU, seconds
    duration : seconds from the start to the output
    num_scheduled_tokens : tokens that the step computes
    preempted : requests preempted while the step was scheduled, in order
    finished : requests that have ended since the previous step, with the reason; rejected and
        aborted ones, too
    num_new_tokens : output tokens that the step generates
    """

    time: float
    duration: float
    num_scheduled_tokens: dict[int, int] = field(default_factory=dict)
    preempted: list[int] = field(default_factory=list)
    finished: dict[int, FinishReason] = field(default_factory=dict)
    num_new_tokens: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scheduled:
    """The oldest batch in flight, before its output: lists with one entry per request."""

    places: list[int]
    rows: list[int]
    num_tokens: list[int]
    before: list[int]


def fields(records: Any, name: str, places: Sequence[int]) -> list[int]:
    """Return one field of the records at some indices of a list."""
    if isinstance(records, Views):
        found: list[int] = records.array[name][places].tolist()
        return found
    return [getattr(records[k], name) for k in places]


class Stepper:
    """Runs a replica step by step, and returns steps keyed by row.

    Parameters
    ----------
    replica : a watched replica, which stops after every schedule and every output
    observer : called at every stop
    """

    def __init__(self, replica: Replica, observer: Observer | None) -> None:
        self._replica, self._state, self._observer = replica, replica.state, observer
        # Start time and preempted rows of each step in flight.
        self._starts: list[tuple[float, list[int]]] = []
        self._free_time = self._state.clock  # when the GPU is free
        self._flight: Scheduled | None = (
            None  # the oldest batch in flight, if nothing was run since
        )
        self.num_steps = 0  #: Steps whose output was processed.
        #: Clock at the last schedule, which saw all requests that had arrived by then.
        self.last_schedule = float("-inf")

    def next(self, horizon: float) -> tuple[EngineStep, bool]:
        """Run up to the next output or a time; return the step, and whether it has output.

        The dictionaries of the step are keyed by trace row. Mutates.
        """
        self._state.horizon = horizon
        oldest, self._flight = self._flight or self._oldest(), None
        for stop in self._replica.stops():
            if stop == SCHEDULED:
                self._record_schedule()
                if self._observer is not None:
                    self._observer.scheduled(self._replica)
                oldest = self._oldest()
            elif stop == COMPLETED:
                if self._observer is not None:
                    self._observer.completed(self._replica)
                return self._completed(oldest), True
        self._flight = oldest
        return EngineStep(self._state.clock, 0.0), False

    def next_tokens(self) -> tuple[float, list[int]]:
        """Return the end of the oldest step in flight, and the rows that get one token then.

        Infinite without a step in flight, or if the number of tokens is not known yet.
        """
        state, flight = self._state, self._flight
        is_known = state.connector.kind == NO_CONNECTOR and not state.limits.has_own_loop
        is_known &= not (
            state.limits.num_drafts or state.limits.has_drops or state.limits.in_python
        )
        if flight is None or not flight.rows or not is_known:
            return math.inf, []
        batch: Any = state.batches[state.first_batch]
        unfinished = fields(batch.entries, "unfinished", range(len(flight.rows)))
        found = zip(flight.rows, unfinished, strict=True)
        return float(batch.end), [row for row, is_unfinished in found if not is_unfinished]

    def _oldest(self) -> Scheduled:
        """Return the oldest batch in flight, empty if none is."""
        state = self._state
        if not state.num_batches:
            return Scheduled([], [], [], [])
        batch: Any = state.batches[state.first_batch]
        entries, size = batch.entries, range(batch.size)
        places = fields(entries, "request", size)
        return Scheduled(
            places,
            fields(state.requests, "request_id", places),
            fields(entries, "num_tokens", size),
            fields(state.requests, "num_tokens", places),
        )

    def _record_schedule(self) -> None:
        """Record the start of the step just scheduled, and its preemptions. Mutates."""
        state = self._state
        self.last_schedule = state.clock
        if state.num_batches <= len(self._starts):
            return
        newest = (state.first_batch + state.num_batches - 1) % (state.limits.depth + 1)
        lost = head(state.preempted, state.num_preempted)
        start = max(state.clock, self._free_time)
        self._starts.append((start, fields(state.requests, "request_id", lost)))
        self._free_time = state.batches[newest].end

    def _completed(self, oldest: Scheduled) -> EngineStep:
        """Return the step that has just completed. Mutates."""
        self.num_steps += 1
        start, preempted = self._starts.pop(0)
        after = fields(self._state.requests, "num_tokens", oldest.places)
        new = {
            row: now - before
            for row, now, before in zip(oldest.rows, after, oldest.before, strict=True)
            if now > before
        }
        scheduled = dict(zip(oldest.rows, oldest.num_tokens, strict=True))
        duration = self._state.clock - start
        return EngineStep(start, duration, scheduled, preempted, {}, new)
