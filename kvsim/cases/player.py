"""The loop that plays every recorded case; a subclass adapts it to an engine's scheduler."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from kvsim.engine.refusal import check_compiled
from kvsim.engine.replica import Replica
from kvsim.records.engine import COMPLETED, DONE, SCHEDULED
from kvsim.results.tables import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvsim.engine.contents import Contents
    from kvsim.engine.setup import Parts

Entry = dict[str, Any]

#: A case counts steps, not seconds: its clock starts after all arrivals.
AFTER_ALL_ARRIVALS = 1e12


def add(entry: Entry, **columns: Any) -> None:
    """Add the columns that have a value to an entry of the log. Mutates the entry."""
    entry.update({name: value for name, value in columns.items() if value is not None})


def checksum(values: Iterable[object], separator: str = ",") -> int:
    """Return the CRC-32 of the concatenated values, 0 without values."""
    return crc32(separator.join(map(str, values)).encode())


def linked(records: Any, first: int) -> Iterator[Any]:
    while first >= 0:
        record = records[first]
        yield record
        first = record.next


class Feature:
    """Hooks around a step of vLLM, called in this order; by default they do nothing."""

    def arrive(self, step: int) -> list[Any]:
        """Act before the arrivals of a step; return the names of requests that end at once."""
        return []

    def arrived(self, step: int) -> None:
        """Act after the arrivals of a step."""

    def rests(self) -> bool:
        """Return True if a step has nothing to do."""
        return False

    def before(self, entry: Entry) -> None:
        """Act before a step is scheduled. May mutate the entry."""

    def scheduled(self, entry: Entry) -> None:
        """Act after a step was scheduled. May mutate the entry."""

    def report(self) -> None:
        """Deliver the reports that arrive with the output of the oldest batch."""

    def processed(self, entry: Entry) -> None:
        """Act after a step's output was processed. May mutate the entry."""


class Player(ABC):
    """Plays a case step by step, on its own replica.

    Parameters
    ----------
    parts : the parts of the replica
    contents : the requests by row
    compiled : run the compiled engine

    Raises
    ------
    ValueError
        If the compiled engine is requested and cannot run the case.
    """

    def __init__(self, parts: Parts, contents: Contents, *, compiled: bool) -> None:
        if compiled:
            check_compiled(parts)
        self.table = np.zeros(len(contents), dtype=REQUESTS)
        self.replica = Replica(
            0,
            parts,
            contents,
            self.table,
            start_time=AFTER_ALL_ARRIVALS,
            watched=True,
            compiled=compiled,
        )
        self.state = self.replica.state
        self._stops = self.replica.stops()

    @abstractmethod
    def has_work(self, step: int) -> bool:
        """Return True if the case continues with this step."""

    @abstractmethod
    def begin(self, step: int) -> Entry | None:
        """Submit the arrivals of a step and return its log entry; None if the engine is idle."""

    @abstractmethod
    def advance(self, entry: Entry) -> bool:
        """Run the step; return True if its entry belongs in the log. Mutates the entry."""

    def next_step(self, step: int) -> int:
        return step + 1

    def play(self, *, check: bool = False) -> Iterator[Entry]:
        """Yield the log entry of every step; ``check`` recounts all memory after each."""
        step = 0
        while self.has_work(step):
            entry = self.begin(step)
            if entry is not None:
                is_logged = self.advance(entry)
                if check:
                    self.replica.check_integrity()
                if is_logged:
                    yield entry
            step = self.next_step(step)

    def submit(self, rows: Iterable[int], times: Iterable[float]) -> None:
        self.replica.submit(np.array([*rows], np.int64), np.array([*times], np.float64))

    def next_stop(self) -> int:
        """Run to the next stop of a step, and return it; DONE if there is none."""
        return next((s for s in self._stops if s in (DONE, SCHEDULED, COMPLETED)), DONE)

    def first_stop(self) -> int:
        """Run to the first stop of a step, and return it; restart a replica that was done."""
        stop = self.next_stop()
        if stop == DONE:
            self._stops = self.replica.stops()
            stop = self.next_stop()
        return stop
