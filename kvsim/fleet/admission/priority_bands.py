"""A queue with priority bands in which tenants take turns."""

from __future__ import annotations

from heapq import heappop, heappush


class PriorityBands:
    """Waiting requests: the most urgent band first, strictly.

    Each tenant of a band has a queue of its own, the lowest rank first and ties in order of
    arrival. The queues take turns; a tenant that arrives or returns is the last to have its turn.
    """

    def __init__(self) -> None:
        self._bands: dict[int, dict[int, list[tuple[float, int, int]]]] = {}
        self._number = 0
        self._num_pushed = 0

    def __len__(self) -> int:
        return self._number

    def push(self, row: int, priority: int, tenant: int, rank: float = 0.0) -> None:
        line = self._bands.setdefault(priority, {}).setdefault(tenant, [])
        heappush(line, (rank, self._num_pushed, row))
        self._num_pushed += 1
        self._number += 1

    def pop(self) -> int:
        """Remove and return the next request. Mutates.

        Raises
        ------
        ValueError
            If there is none.
        """
        priority = min(self._bands)
        band = self._bands[priority]
        tenant = next(iter(band))
        line = band.pop(tenant)
        _, _, row = heappop(line)
        if line:
            band[tenant] = line  # last in the rotation
        elif not band:
            del self._bands[priority]
        self._number -= 1
        return row
