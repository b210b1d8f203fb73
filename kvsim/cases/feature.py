"""What a case may add to a schedule of vLLM, and to its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.cases.player import Entry


class Feature:
    """Acts at moments of a step, in this order; by default it does nothing."""

    def arrive(self, step: int) -> list[Any]:
        """Act before the arrivals of a step; returns the names of requests that this ends."""
        del step
        return []

    def arrived(self, step: int) -> None:
        """Act behind the arrivals of a step."""

    def rests(self) -> bool:
        """Whether a step has nothing to do."""
        return False

    def before(self, entry: Entry) -> None:
        """Act before a step is scheduled. May mutate the entry."""

    def scheduled(self, entry: Entry) -> None:
        """See what was scheduled. May mutate the entry."""

    def report(self) -> None:
        """Deliver what comes with the output of the oldest batch."""

    def processed(self, entry: Entry) -> None:
        """See the state after a step. May mutate the entry."""
