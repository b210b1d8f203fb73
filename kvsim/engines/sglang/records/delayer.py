"""The record of SGLang's prefill delayer."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.records.record import Record


@dataclass(slots=True)
class Delayer(Record):
    """Limits of the delay of prefills, and the state of the current delay."""

    is_on: bool = False
    low_usage: float = 0.0  # share of the fuller pool below which no prefill waits
    queue_ratio: float = 0.0  # waiting requests per running one that end a delay; 0: any number
    most_waited: float = 0.0  # longest delay for these requests, s
    most_at_once: int = 0  # most requests in a prefill so far
    has_spared: bool = False  # the first delay was skipped
    is_asked: bool = False  # this pass has decided
    delays: bool = False  # the decision of this pass
    waits: bool = False  # this pass delays a prefill
    had_waited: bool = False  # the previous pass delayed a prefill
    since: float = 0.0  # start of the current delay, s
