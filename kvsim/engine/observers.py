"""Observers, which are called after every step of a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.replica import Replica


class Observer(Protocol):
    """Observes a replica after every step, to record or to check it."""

    def scheduled(self, replica: Replica) -> None:
        """Observe a step that was just scheduled."""

    def completed(self, replica: Replica) -> None:
        """Observe the state after the output of a step was processed."""


class Observers:
    """Calls several observers after every step, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def scheduled(self, replica: Replica) -> None:
        for one in self._observers:
            one.scheduled(replica)

    def completed(self, replica: Replica) -> None:
        for one in self._observers:
            one.completed(replica)


def together(*observers: Observer | None) -> Observer | None:
    """Return one observer that calls all given observers; None if there are none."""
    found = [one for one in observers if one is not None]
    return found[0] if len(found) == 1 else Observers(found) if found else None
