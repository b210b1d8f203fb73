"""Blocks that a store receives some time after the step that computed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Slot of a replica that has been removed.
GONE = -1


class Deliveries:
    """Blocks that replicas report as stored, until a store receives them.

    Parameters
    ----------
    delay : seconds from the report until the store has the blocks
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._coming: list[tuple[float, int, list[int]]] = []

    def take(self, time: float, replica: int, keys: list[int]) -> None:
        """Record blocks that a replica has computed; calls may be out of time order. Mutates."""
        self._coming.append((time + self._delay, replica, keys))

    def forget(self, replica: int) -> None:
        """Set the slot of a removed replica's pending deliveries to ``GONE``. Mutates."""
        self._coming = [
            (time, GONE if place == replica else place, keys) for time, place, keys in self._coming
        ]

    def due(self, now: float) -> Iterator[tuple[float, int, list[int]]]:
        """Remove and yield the deliveries due by now, in order: time, slot, keys. Mutates."""
        self._coming.sort(key=lambda one: one[:2])
        while self._coming and self._coming[0][0] <= now:
            yield self._coming.pop(0)
