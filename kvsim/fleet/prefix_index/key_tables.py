"""Keys that replicas hold, in compiled tables.

The tables return the same results as ``PrefixIndex``. They serve fleets of compiled replicas, which
store and remove millions of blocks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.compiled import key_table, sent_index
from kvsim.compiled.loops import translated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

#: Initial number of rows of a table.
FIRST_ROWS = 1 << 12
#: Initial number of links of an index of sent prefixes.
FIRST_LINKS = 1 << 12


class KeyTable:
    """Keys with values, in arrays that grow.

    Parameters
    ----------
    width : number of values per key
    """

    def __init__(self, width: int = 1) -> None:
        self._refill, self._width = translated(key_table.refill), width
        self.number = 0
        self._init_state(FIRST_ROWS)

    def _init_state(self, rows: int) -> None:
        self.keys = np.full(rows, key_table.EMPTY, np.int64)
        self.values = np.zeros((rows, self._width), np.int64)

    def reserve(self, more: int) -> None:
        """Make room for ``more`` keys, so that the table stays at most half full. Mutates."""
        if 2 * (self.number + more) > len(self.keys):
            self.refill(self.number + more)

    def refill(self, number: int) -> None:
        """Drop the keys without a value, and make room for ``number`` keys. Mutates."""
        keys, values, rows = self.keys, self.values, len(self.keys)
        while rows < 3 * number:
            rows *= 2
        self._init_state(rows)
        self.number = self._refill(keys, values, self.keys, self.values)


class HeldKeys:
    """Keys of the prefixes on each replica, in a compiled table.

    Parameters
    ----------
    num_replicas : replicas
    """

    def __init__(self, num_replicas: int) -> None:
        self._find, self._match = map(translated, (key_table.find, key_table.match))
        self._held = KeyTable(-(-num_replicas // 64))
        self._sizes, self._matched = np.zeros((2, num_replicas), np.int64)
        self._left = np.zeros(self._held.values.shape[1], np.int64)  # scratch memory of a match

    def match(self, keys: Iterable[int], now: float = 0.0) -> list[int]:
        """Return the number of leading keys that each replica holds."""
        del now
        self._match(self._held.keys, self._held.values, _array(keys), self._matched, self._left)
        found: list[int] = self._matched.tolist()
        return found

    def holders(self, key: int) -> int:
        """Return the replicas that hold an entry, as a bit mask: bit ``i`` is replica ``i``."""
        row = self._held.values[self._find(self._held.keys, key)]
        return sum((int(word) % (1 << 64)) << (64 * k) for k, word in enumerate(row))

    def size(self, replica: int) -> int:
        return int(self._sizes[replica])


class CompiledEventIndex(HeldKeys):
    """Keys of the prefixes on each replica, updated by the replicas' events.

    Parameters
    ----------
    num_replicas : replicas
    group : KV cache group of the indexed blocks
    """

    def __init__(self, num_replicas: int, group: int) -> None:
        super().__init__(num_replicas)
        self._group, self._rows = group, np.zeros(3, np.int64)
        self._apply_events = translated(key_table.apply_events)
        self._apply_logs = translated(key_table.apply_logs)
        self._more = KeyTable(2)  # a replica's further blocks with an equal key: number, replica

    def take(self, place: int, events: NDArray[Any], told: Ints, start: int, stop: int) -> None:
        """Apply events of a replica. Mutates."""
        if start == stop:
            return
        held, more, rows = self._held, self._more, np.zeros(3, np.int64)
        self._reserve(int(events["key_count"][start:stop].sum()))
        self._apply_events(
            *(events, told, start, stop, self._group, place),
            *(held.keys, held.values, more.keys, more.values, rows),
        )
        held.number += int(rows[0])
        more.number += int(rows[1])
        self._sizes[place] += rows[2]

    def apply_logs(self, addresses: Ints, taken: Ints, until: float) -> None:
        """Apply the new events of the replicas' logs up to a time. Mutates.

        ``taken`` has the number of applied events of each log, and is updated.
        """
        held, more, rows, place = self._held, self._more, self._rows, 0
        while place >= 0:
            rows[:] = held.number, more.number, 0
            place = self._apply_logs(
                *(addresses, taken, float(until), self._group, held.keys, held.values),
                *(more.keys, more.values, rows, self._sizes, place),
            )
            held.number, more.number, room = rows.tolist()
            if place >= 0:
                self._reserve(room)

    def _reserve(self, num_keys: int) -> None:
        self._held.reserve(num_keys)
        self._more.reserve(num_keys)

    def forget(self, replica: int) -> None:
        """Remove all entries of a replica. Mutates."""
        held, word = self._held, replica // 64
        held.values[:, word] &= ~np.array(1 << replica % 64, np.uint64).view(np.int64)
        held.refill(held.number)
        self._more.values[self._more.values[:, 1] == replica] = 0
        self._more.refill(self._more.number)
        self._sizes[replica] = 0


class SentIndex(HeldKeys):
    """Keys of prefixes sent to each replica, the least recently used first.

    Parameters
    ----------
    num_replicas : replicas
    max_entries : largest number of entries per replica
    """

    def __init__(self, num_replicas: int, max_entries: float = math.inf) -> None:
        super().__init__(num_replicas)
        self._insert, self._shrink = map(translated, (sent_index.insert, sent_index.shrink))
        self._max_entries = max_entries
        self._named, self._links = KeyTable(), np.zeros((FIRST_LINKS, 3), np.int64)
        self._ends, self._counters = np.zeros((num_replicas, 2), np.int64), np.zeros(4, np.int64)
        self._columns: tuple[Ints, ...] = (self._ends,)  # an equal tuple is passed on at once

    def columns(self) -> tuple[Ints, ...]:
        """Return the arrays of :mod:`kvsim.compiled.sent_index`."""
        held, named = self._held, self._named
        tables = held.keys, held.values, named.keys, named.values, self._links
        if any(one is not other for one, other in zip(tables, self._columns, strict=False)):
            self._columns = *tables, self._ends, self._counters, self._sizes
        return self._columns

    def reserve(self, number: int) -> None:
        """Make room for ``number`` keys. Mutates."""
        for column, table in enumerate((self._held, self._named)):
            table.number = int(self._counters[column])
            table.reserve(number)
        while self._counters[2] + number >= len(self._links):
            self._links = np.concatenate((self._links, np.zeros_like(self._links)))

    def insert(self, replica: int, keys: Iterable[int], now: float = 0.0) -> None:
        """Record that a replica holds the entries ``keys``, and has used them now. Mutates."""
        del now
        path = _array(keys)
        self.reserve(len(path))
        self._insert(self.columns(), replica, path, len(path), True)
        self.shrink(replica, self._max_entries)

    def shrink(self, replica: int, num_entries: float) -> None:
        """Evict a replica's least recently used entries until ``num_entries`` remain. Mutates."""
        self._shrink(self.columns(), replica, float(num_entries))


def _array(keys: Iterable[int]) -> Ints:
    """Return keys as an array for compiled code."""
    if isinstance(keys, np.ndarray):
        return np.ascontiguousarray(keys)
    return np.fromiter(keys, np.int64)
