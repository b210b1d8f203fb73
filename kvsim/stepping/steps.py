"""Steps of a replica, one after another: each batch and its results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

    All dictionaries are by request id; the samples of a request count together.

    Attributes
    ----------
    time : start of the step on the GPU, seconds
    duration : until its output is there, seconds
    num_scheduled_tokens : tokens that the step computes
    preempted : requests that lost their KV when it was scheduled, in that order
    finished : requests that have ended since the step before, with the reason; rejected and
        aborted ones, too
    num_new_tokens : output tokens that its output adds
    """

    time: float
    duration: float
    num_scheduled_tokens: dict[int, int] = field(default_factory=dict)
    preempted: list[int] = field(default_factory=list)
    finished: dict[int, FinishReason] = field(default_factory=dict)
    num_new_tokens: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Scheduled:
    """The oldest batch in flight, before its output, as lists with an entry per request."""

    places: list[int]
    rows: list[int]
    num_tokens: list[int]
    before: list[int]


def fields(records: Any, name: str, places: Sequence[int]) -> list[int]:
    """Return one field of some records of a list."""
    if isinstance(records, Views):
        found: list[int] = records.array[name][places].tolist()
        return found
    return [getattr(records[k], name) for k in places]


class Stepper:
    """Runs a replica step by step, and returns each step by row.

    Parameters
    ----------
    replica : watched, so that it stops after every schedule and every output
    observer : called after each of them
    """

    def __init__(self, replica: Replica, observer: Observer | None) -> None:
        self._replica, self._state, self._observer = replica, replica.state, observer
        self._starts: list[tuple[float, list[int]]] = []  # of steps in flight, with preemptions
        self._free_time = self._state.clock  # when the GPU is free
        #: Clock at the last schedule, which saw all requests that had arrived by then.
        self.last_schedule = float("-inf")

    def next(self, horizon: float) -> tuple[EngineStep, bool]:
        """Run up to the next output or to a time; return the step by rows, and if there is one.

        Mutates.
        """
        self._state.horizon = horizon
        oldest = self._oldest()
        for stop in self._replica.stops():
            if stop == SCHEDULED:
                self._note_schedule()
                if self._observer is not None:
                    self._observer.scheduled(self._replica)
            elif stop == COMPLETED:
                if self._observer is not None:
                    self._observer.completed(self._replica)
                return self._completed(oldest), True
            oldest = self._oldest()
        return EngineStep(self._state.clock, 0.0), False

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

    def _note_schedule(self) -> None:
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
        """Return the step with an output that was just processed. Mutates."""
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
