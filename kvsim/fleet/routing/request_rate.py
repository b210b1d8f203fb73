"""Number of recent requests that a gateway sent to each replica."""

from __future__ import annotations

from collections import deque

from kvsim.fleet.routing.choice import argmin


class RequestRate:
    """Counts requests over a sliding window of seconds."""

    def __init__(self, num_replicas: int, window: float) -> None:
        self._window = window
        self._sent: deque[tuple[float, int]] = deque()
        self.counts = [0] * num_replicas

    def count(self, replica: int, now: float) -> None:
        self._sent.append((now, replica))
        self.counts[replica] += 1

    def lowest(self, now: float) -> int:
        """Return the first replica with the fewest requests in the window. Mutates."""
        self.forget(now)
        return argmin(self.counts)

    def forget(self, now: float) -> None:
        """Drop the requests before the window. Mutates."""
        while self._sent and self._sent[0][0] <= now - self._window:
            self.counts[self._sent.popleft()[1]] -= 1
