"""KV in transfer between replicas: transfers share the links of their source and target."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

#: A transfer with at most this number of bytes left is done; rounding errors are smaller, even
#: after days of simulated time.
CRUMB = 1024.0


@dataclass(slots=True)
class Transfer:
    """One transfer in progress: source, target, and the bytes that have not arrived."""

    source: Hashable
    target: Hashable
    remaining: float


class Network:
    """Links of equal bandwidth: every replica has one outgoing and one incoming link.

    The transfers of a link share it equally (processor sharing), and a transfer runs at the smaller
    of its shares of the outgoing and the incoming link.

    Parameters
    ----------
    bandwidth : bandwidth of each link, bytes/s
    """

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = bandwidth
        self._transfers: dict[int, Transfer] = {}
        self._outgoing: Counter[Hashable] = Counter()
        self._incoming: Counter[Hashable] = Counter()
        self._now = -math.inf

    def __len__(self) -> int:
        """Number of transfers in progress."""
        return len(self._transfers)

    def start(
        self, key: int, source: Hashable, target: Hashable, num_bytes: float, now: float
    ) -> None:
        self._pass(now)
        remaining = 0.0 if self._bandwidth == math.inf else float(num_bytes)
        self._transfers[key] = Transfer(source, target, remaining)
        self._outgoing[source] += 1
        self._incoming[target] += 1

    def cancel(self, key: int, now: float) -> bool:
        """Cancel a transfer; False if it is not in progress. Mutates."""
        if key not in self._transfers:
            return False
        self._pass(now)
        self._forget(key)
        return True

    def next_end(self) -> float:
        """Return the time of the next end if no transfer starts before; ``inf`` without any."""
        ends = [
            self._now + (t.remaining / self._rate(t) if t.remaining else 0.0)
            for t in self._transfers.values()
        ]
        return min(ends, default=math.inf)

    def ended(self, now: float) -> list[int]:
        """Remove and return the transfers that have ended by now, in order of their start."""
        self._pass(now)
        done = [key for key, t in self._transfers.items() if self._is_done(t)]
        for key in done:
            self._forget(key)
        return done

    def _is_done(self, transfer: Transfer) -> bool:
        """Return True if all bytes have arrived, or the rest takes less than the clock resolves."""
        rest = transfer.remaining
        return rest <= CRUMB or self._now + rest / self._rate(transfer) == self._now

    def _rate(self, transfer: Transfer) -> float:
        sharers = max(self._outgoing[transfer.source], self._incoming[transfer.target])
        return self._bandwidth / sharers

    def _pass(self, now: float) -> None:
        if now > self._now and self._transfers:
            seconds = now - self._now
            rates = [self._rate(t) for t in self._transfers.values()]
            for transfer, rate in zip(self._transfers.values(), rates, strict=True):
                transfer.remaining -= rate * seconds if transfer.remaining else 0.0
        self._now = max(now, self._now)

    def _forget(self, key: int) -> None:
        transfer = self._transfers.pop(key)
        self._outgoing[transfer.source] -= 1
        self._incoming[transfer.target] -= 1
