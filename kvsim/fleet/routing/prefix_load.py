"""Preble's estimate of the future prefill time of a replica's prefixes."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.prefix_index.event_index import KeyIndex


@dataclass(slots=True)
class Uses:
    """Recent uses of an entry, the misses among them, and the bit mask of its holders."""

    number: int = 0
    missed: int = 0
    holders: int = 0


@dataclass(slots=True)
class Share:
    """The holders of some entries, and the seconds that each bears for their misses."""

    places: Sequence[int]
    seconds: float = 0.0


class PrefixLoad:
    """Estimates prefill seconds of each replica from the entries of recent prompts.

    An entry costs each of its holders ``prefill time * miss rate * uses / number of holders``: the
    prefill time of its misses, divided among the holders. Holders are looked up at each use.

    Parameters
    ----------
    index : index with the holders of each entry
    num_replicas : replicas
    piece_time : seconds to compute one entry
    window : seconds for which a use counts
    """

    def __init__(
        self, index: KeyIndex, num_replicas: int, piece_time: float, window: float
    ) -> None:
        self._index = index
        self._piece_time = piece_time
        self._window = window
        self._uses: dict[int, Uses] = {}
        self._missed: Counter[int] = Counter()  # by holders
        self._asked: deque[tuple[float, Sequence[int], int]] = deque()
        self._num_replicas = num_replicas
        self._changed: set[int] = set()  # sets of holders whose misses changed since the last call
        self._shares: dict[int, Share] = {}  # by holders
        self._held: list[list[int]] = [[] for _ in range(num_replicas)]  # sets of holders, in order
        self._loads = [0.0] * num_replicas

    def note(self, now: float, keys: Sequence[int], num_cached: int) -> None:
        """Record a placed prompt with its first ``num_cached`` entries cached. Mutates."""
        self._asked.append((now, keys, num_cached))
        self._count(keys, num_cached, 1)

    def forget(self, now: float) -> None:
        """Drop the uses that are older than the window. Mutates."""
        while self._asked and self._asked[0][0] <= now - self._window:
            _, keys, num_cached = self._asked.popleft()
            self._count(keys, num_cached, -1)

    def seconds(self) -> list[float]:
        """Return the expected prefill seconds of each replica."""
        stale: set[int] = set()
        for one in self._changed:
            stale.update(self._share_out(one))
        self._changed.clear()
        for place in stale:
            load = 0.0
            for one in self._held[place]:  # one order of additions
                load += self._shares[one].seconds
            self._loads[place] = load
        return list(self._loads)

    def _share_out(self, one: int) -> Sequence[int]:
        """Update the share of a set of holders; return the replicas whose loads change. Mutates."""
        missed, old = self._missed.get(one, 0), self._shares.get(one)
        if old is None and missed:
            places = [place for place in range(self._num_replicas) if one >> place & 1]
            old = self._shares[one] = Share(places)
            for place in places:
                insort(self._held[place], one)
        if old is None:
            return ()
        if not missed:
            del self._shares[one]
            for place in old.places:
                del self._held[place][bisect_left(self._held[place], one)]
        before, old.seconds = old.seconds, missed / max(len(old.places), 1) * self._piece_time
        return old.places if old.seconds != before else ()

    def _count(self, keys: Sequence[int], num_cached: int, sign: int) -> None:
        known, holders_of = self._uses, self._index.holders
        for place, key in enumerate(keys):
            uses, holders = known.get(key), holders_of(key)
            if uses is None:
                uses = known[key] = Uses(holders=holders)
            uses.number += sign
            if place >= num_cached or holders != uses.holders:
                self._file(uses, -1)
                uses.missed += sign * (place >= num_cached)
                uses.holders = holders
                self._file(uses, 1)
            if not uses.number:  # nor any missed
                del known[key]

    def _file(self, uses: Uses, sign: int) -> None:
        """Add the misses of an entry to those of its set of holders, or subtract them."""
        if uses.missed:
            self._changed.add(uses.holders)
            self._missed[uses.holders] += sign * uses.missed
            if not self._missed[uses.holders]:
                del self._missed[uses.holders]
