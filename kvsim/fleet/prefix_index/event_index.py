"""Index of the blocks that replicas hold, according to their own events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.records.events import REMOVED, STORED

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray


class KeyIndex(Protocol):
    """The interface of an index of prefixes to routers."""

    def match(self, keys: Iterable[int], now: float = 0.0) -> list[int]:
        """Return the number of leading keys that each replica holds."""

    def holders(self, key: int) -> int:
        """Return the replicas that hold an entry, as a bit mask: bit ``i`` is replica ``i``."""

    def size(self, replica: int) -> int:
        """Return the number of entries of a replica."""


class EventIndex(KeyIndex, Protocol):
    """An index that events update."""

    def take(
        self, place: int, events: NDArray[Any], told: NDArray[np.int64], start: int, stop: int
    ) -> None:
        """Apply a replica's events from ``start`` to ``stop``; ``told`` has their keys. Mutates."""

    def forget(self, replica: int) -> None:
        """Remove all entries of a replica. Mutates."""


class PlainEventIndex(PrefixIndex):
    """The index in plain Python.

    Parameters
    ----------
    num_replicas : replicas
    group : KV cache group of the indexed blocks
    """

    def __init__(self, num_replicas: int, group: int) -> None:
        super().__init__(num_replicas)
        self._group = group
        self._numbers: list[dict[int, int]] = [{} for _ in range(num_replicas)]

    def take(
        self, place: int, events: NDArray[Any], told: NDArray[np.int64], start: int, stop: int
    ) -> None:
        part = events[start:stop]
        names = ("kind", "group", "first_key", "key_count")
        for kind, group, first, count in zip(*(part[name].tolist() for name in names), strict=True):
            if group != self._group:
                continue
            if kind == STORED:
                self._store(place, told[first : first + count].tolist())
            elif kind == REMOVED:
                for key in told[first : first + count].tolist():
                    self._remove(place, key)

    def _store(self, place: int, keys: list[int]) -> None:
        """Count blocks by key: several blocks may hold the same content."""
        numbers = self._numbers[place]
        for key in keys:
            number = numbers.get(key, 0)
            numbers[key] = number + 1
            if not number:
                self.add(place, key)

    def _remove(self, place: int, key: int) -> None:
        numbers = self._numbers[place]
        number = numbers.get(key, 0)
        if number > 1:
            numbers[key] = number - 1
        elif number:
            del numbers[key]
            self.remove(place, key)

    def forget(self, replica: int) -> None:
        super().forget(replica)
        self._numbers[replica] = {}
