"""Memory or disks that store entries until they are full, and evict the least recently used."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable


class LruStore:
    """Entries by key, the least recently used first.

    Parameters
    ----------
    num_entries : capacity
    mark : share of the capacity above which entries are evicted
    batch : share of the capacity that one eviction frees, at least one entry
    """

    def __init__(self, num_entries: float, *, mark: float = 1.0, batch: float = 0.0) -> None:
        self._most = mark * num_entries
        self._batch = max(1, int(batch * num_entries)) if num_entries < float("inf") else 1
        self._held: OrderedDict[Hashable, None] = OrderedDict()
        self.num_evicted = 0

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._held

    def touch(self, keys: Iterable[Hashable]) -> None:
        """Mark stored entries as used, in order. Mutates."""
        for key in keys:
            self._held.move_to_end(key)

    def put(self, keys: Iterable[Hashable]) -> None:
        """Store entries, in order; entries already stored count as used. Mutates."""
        held = self._held
        if self._most < 1:
            return  # there is no room at all
        for key in keys:
            held[key] = None
            held.move_to_end(key)
            if len(held) > self._most:
                number = min(self._batch, len(held))
                self.num_evicted += number
                for _ in range(number):
                    held.popitem(last=False)
