"""Blocks on their way into a store: known some time after the step that computed them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


#: The place of a replica that is gone.
GONE = -1


class Deliveries:
    """What replicas tell of what they stored, in the order of time.

    Parameters
    ----------
    delay : seconds until it is there
    """

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._coming: list[tuple[float, int, list[int]]] = []

    def take(self, time: float, replica: int, keys: list[int]) -> None:
        """Note what a replica has computed; replicas tell one after another. Mutates."""
        self._coming.append((time + self._delay, replica, keys))

    def forget(self, replica: int) -> None:
        """Learn that a replica is gone: what it told is on its way, but nobody's. Mutates."""
        self._coming = [
            (time, GONE if place == replica else place, keys) for time, place, keys in self._coming
        ]

    def due(self, now: float) -> Iterator[tuple[float, int, list[int]]]:
        """Hand out what is there by now: when, whose, which. Mutates."""
        self._coming.sort(key=lambda one: one[:2])
        while self._coming and self._coming[0][0] <= now:
            yield self._coming.pop(0)
