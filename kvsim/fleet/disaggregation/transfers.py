"""KV transfers over one fabric: each takes a fixed time, then its bytes cross shared links."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.fleet.disaggregation.network import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.world import World


class Transfers:
    """Starts, cancels and ends transfers as events of the world.

    Parameters
    ----------
    world : the SimPy environment
    fabric : the fabric that carries the transfers

    Attributes
    ----------
    num_bytes : bytes of all transfers that have arrived or are in progress
    """

    def __init__(self, world: World, fabric: Fabric) -> None:
        self._world = world
        self.fabric = fabric
        self._network = Network(fabric.bandwidth)
        self._on_end: dict[int, Callable[[], object]] = {}
        self._flowing: dict[int, int] = {}  # bytes
        self._number = 0
        self._version = 0
        self.num_bytes = 0

    def begin(
        self,
        source: Hashable,
        target: Hashable,
        num_bytes: int,
        num_descriptors: int,
        time: float,
        on_end: Callable[[], object],
    ) -> int:
        """Schedule a transfer at ``time`` >= now, and ``on_end`` at its end; return its number."""
        begins = time + self.fabric.base + num_descriptors * self.fabric.per_descriptor
        self._number += 1
        number, self._on_end[self._number] = self._number, on_end
        self._world.call_at(begins, lambda: self._start(number, source, target, num_bytes))
        return number

    def cancel(self, number: int) -> None:
        """Cancel a transfer that has not ended; none of its bytes arrive. Mutates."""
        if self._on_end.pop(number, None) is None:
            return
        self.num_bytes -= self._flowing.pop(number, 0)
        if self._network.cancel(number, self._world.now):
            self._await_next_end()

    def _start(self, number: int, source: Hashable, target: Hashable, num_bytes: int) -> None:
        if number not in self._on_end:  # canceled before
            return
        self.num_bytes += num_bytes
        self._flowing[number] = num_bytes
        self._network.start(number, source, target, num_bytes, self._world.now)
        self._await_next_end()

    def _await_next_end(self) -> None:
        """Schedule the next end of a transfer; an earlier start, end or cancel reschedules it."""
        self._version += 1
        version, time = self._version, self._network.next_end()
        if time < math.inf:
            self._world.call_at(max(time, self._world.now), lambda: self._on_ends(version))

    def _on_ends(self, version: int) -> None:
        if version != self._version:
            return
        for number in self._network.ended(self._world.now):
            del self._flowing[number]
            self._on_end.pop(number)()
        self._await_next_end()
