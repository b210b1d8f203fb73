"""A waiting line with bands by priority, in which tenants take turns."""

from __future__ import annotations

from heapq import heappop, heappush


class PriorityBands:
    """Requests that wait: the most urgent band first, strictly.

    Within a band every tenant has a line of its own, the lowest rank first and of equals who came
    first, and the lines take turns; a tenant who comes, or comes back, is the last to have its
    turn.
    """

    def __init__(self) -> None:
        self._bands: dict[int, dict[int, list[tuple[float, int, int]]]] = {}
        self._number = 0
        self._num_pushed = 0

    def __len__(self) -> int:
        """Requests."""
        return self._number

    def push(self, row: int, priority: int, tenant: int, rank: float = 0.0) -> None:
        """Let a request wait. Mutates."""
        line = self._bands.setdefault(priority, {}).setdefault(tenant, [])
        heappush(line, (rank, self._num_pushed, row))
        self._num_pushed += 1
        self._number += 1

    def pop(self) -> int:
        """Take out the next request. Mutates.

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
            band[tenant] = line  # behind the others
        elif not band:
            del self._bands[priority]
        self._number -= 1
        return row
