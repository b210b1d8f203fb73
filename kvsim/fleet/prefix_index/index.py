"""Index of the prefixes that replicas hold, as a router predicts them.

All entries have the same number of tokens. The key of an entry covers its tokens and all before
them, so a set of keys is a radix tree: equal keys are equal nodes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class PrefixIndex:
    """Keys of the prefixes on each replica, the least recently used first.

    The entries of a prompt are touched from last to first, so the first entry to be evicted is a
    leaf.

    Parameters
    ----------
    num_replicas : replicas
    max_entries : largest number of entries per replica; beyond it, the least recently used ones
        are evicted
    ttl : seconds without use after which an entry expires
    """

    def __init__(
        self, num_replicas: int, *, max_entries: float = math.inf, ttl: float = math.inf
    ) -> None:
        self._all = (1 << num_replicas) - 1
        self._num_replicas = num_replicas
        self._max_entries = max_entries
        self._ttl = ttl
        self._holders: dict[int, int] = {}  # one bit per replica
        self._used: list[OrderedDict[int, float]] = [OrderedDict() for _ in range(num_replicas)]

    def match(self, keys: Iterable[int], now: float = 0.0) -> list[int]:
        """Return the number of leading keys that each replica holds."""
        if self._ttl < math.inf:
            self._expire(now)
        matched = [0] * self._num_replicas
        left, depth, holders = self._all, 0, self._holders
        for key in keys:
            mask = left & holders.get(key, 0)
            _end(matched, left & ~mask, depth)
            left = mask
            if not left:
                return matched
            depth += 1
        _end(matched, left, depth)
        return matched

    def insert(self, replica: int, keys: Sequence[int], now: float = 0.0) -> None:
        """Record that a replica holds the entries ``keys``, and has used them now. Mutates."""
        used, bit, holders = self._used[replica], 1 << replica, self._holders
        for key in reversed(keys):
            used[key] = now
            used.move_to_end(key)
            holders[key] = holders.get(key, 0) | bit
        self.shrink(replica, self._max_entries)

    def add(self, replica: int, key: int) -> None:
        """Record one more entry of a replica, in an index without limits. Mutates."""
        self._used[replica][key] = 0.0
        self._holders[key] = self._holders.get(key, 0) | 1 << replica

    def remove(self, replica: int, key: int) -> None:
        """Remove an entry of a replica. Mutates."""
        if self._used[replica].pop(key, None) is None:
            return
        left = self._holders[key] & ~(1 << replica)
        if left:
            self._holders[key] = left
        else:
            del self._holders[key]

    def shrink(self, replica: int, num_entries: float) -> None:
        """Evict a replica's least recently used entries until ``num_entries`` remain. Mutates."""
        used = self._used[replica]
        while len(used) > num_entries:
            self.remove(replica, next(iter(used)))

    def forget(self, replica: int) -> None:
        """Remove all entries of a replica. Mutates."""
        self.shrink(replica, 0)

    def size(self, replica: int) -> int:
        """Return the number of entries of a replica."""
        return len(self._used[replica])

    def holders(self, key: int) -> int:
        """Return the replicas that hold an entry, as a bit mask: bit ``i`` is replica ``i``."""
        return self._holders.get(key, 0)

    def _expire(self, now: float) -> None:
        for replica, used in enumerate(self._used):
            while used and now - next(iter(used.values())) > self._ttl:
                self.remove(replica, next(iter(used)))


def _end(matched: list[int], mask: int, depth: int) -> None:
    """Set the depth of every replica in a bit mask. Mutates ``matched``."""
    while mask:
        low = mask & -mask
        matched[low.bit_length() - 1] = depth
        mask ^= low
