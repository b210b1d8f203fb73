"""The record of SGLang's prefill delayer."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.records.record import Record


@dataclass(slots=True)
class Delayer(Record):
    """Limits of the waits for a larger prefill, and the wait under way."""

    is_on: bool = False
    low_usage: float = 0.0  # share of the fuller pool below which no prefill waits
    queue_ratio: float = 0.0  # waiting requests per running one that end a wait; 0: any number
    most_waited: float = 0.0  # s of a wait for them
    most_at_once: int = 0  # requests in a prefill so far
    has_spared: bool = False  # the first prefill that would have waited
    is_asked: bool = False  # in the pass under way
    delays: bool = False  # the answer
    waits: bool = False  # since ``since``
    had_waited: bool = False  # up to the pass before
    since: float = 0.0
