"""A queue with priority bands in which tenants take turns."""

from __future__ import annotations

from heapq import heappop, heappush


class PriorityBands:
    """Waiting requests by priority: a band waits until all more urgent bands are empty.

    Within a band, each tenant has a queue: the lowest rank first, ties in order of arrival. The
    tenants take turns; a tenant that joins the band is last in the rotation.
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
            If no request waits.
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
