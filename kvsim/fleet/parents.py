"""Clients of requests with several samples; the fleet serves each sample as a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.fleet.clients import Clients

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from kvsim.fleet.world import Process
    from kvsim.trace.family import Family


class Parents(Clients):
    """Sends all samples of a request together; the request is answered when the last one ends.

    Parameters
    ----------
    family : the requests, and their samples
    send : called with the row of each sample
    make : makes the clients of the requests, given a function that sends a request
    """

    def __init__(
        self,
        family: Family,
        send: Callable[[int], object],
        make: Callable[[Callable[[int], object]], Clients],
    ) -> None:
        self._family = family
        self._send_sample = send
        self._left = family.parents.num_samples.copy()
        self._last = np.zeros(len(family.parents))
        self._clients = make(self._send_all)

    def _send_all(self, parent: int) -> None:
        first = int(self._family.first[parent])
        for row in range(first, first + int(self._family.parents.num_samples[parent])):
            self._send_sample(row)

    @property
    def sent_time(self) -> NDArray[np.float64]:  # type: ignore[override]
        """Time at which each sample was sent, seconds, NaN if it was not."""
        return self._clients.sent_time[self._family.parent_of]

    @property
    def waits(self) -> bool:
        """Return True if requests may wait for others to end."""
        return self._clients.waits

    @property
    def least_pause(self) -> float:
        """Return the least seconds from a request's end until a waiting one is sent."""
        return self._clients.least_pause

    @property
    def all_sent(self) -> bool:
        return self._clients.all_sent

    def send_all(self) -> None:
        """Mark every request as sent at its planned time. Mutates."""
        self._clients.send_all()

    def process(self) -> Process:
        """Send requests as planned."""
        return self._clients.process()

    def ended(self, rows: Iterable[int], time: float) -> None:
        """Handle samples that have ended at a time, which the world may not have reached."""
        for row in rows:
            parent = int(self._family.parent_of[row])
            self._left[parent] -= 1
            self._last[parent] = max(self._last[parent], time)
            if self._left[parent] == 0:
                self._clients.ended([parent], float(self._last[parent]))
