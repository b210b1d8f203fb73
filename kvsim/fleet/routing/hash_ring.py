"""Consistent hashing: only the keys of an added or removed replica change their replica."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from kvsim.rules.blocks.keys import mix
from kvsim.rules.routing.by_load import POINT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.records.memory import Memory
    from kvsim.records.routing import BoundedRing


class HashRing:
    """A ring of 63-bit numbers on which each replica has several points."""

    def __init__(self, num_replicas: int, num_points: int) -> None:
        self._num_replicas = num_replicas
        self.points = sorted(
            (mix(mix(POINT, replica), number), replica)
            for replica in range(num_replicas)
            for number in range(num_points)
        )

    def lay_out(self, state: BoundedRing, memory: Memory) -> None:
        """Write the points into a record. Mutates."""
        state.points, state.owners = (
            memory.list_of(list(one)) for one in zip(*self.points, strict=True)
        )
        state.num_points = len(self.points)

    def walk(self, key: int) -> Iterator[int]:
        """Yield every replica once, in the order of the ring, starting at a key."""
        start = bisect_left(self.points, (mix(POINT, key), 0))
        seen: set[int] = set()
        for step in range(len(self.points)):
            replica = self.points[(start + step) % len(self.points)][1]
            if replica not in seen:
                seen.add(replica)
                yield replica

    def owner(self, key: int) -> int:
        """Return the owner of a key: the first replica on the ring from the key on."""
        return next(self.walk(key))
