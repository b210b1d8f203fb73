"""Preble's estimate of the future prefill time of a replica's prefixes."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.prefix_index.event_index import KeyIndex


@dataclass(slots=True)
class Uses:
    """Recent uses of an entry, the misses among them, and the bit mask of its holders."""

    number: int = 0
    missed: int = 0
    holders: int = 0


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
        sets = sorted(self._missed)  # one order of additions
        if not sets:
            return [0.0] * self._num_replicas
        width = -(-self._num_replicas // 8)
        bits = np.frombuffer(b"".join(one.to_bytes(width, "little") for one in sets), np.uint8)
        holds = np.unpackbits(bits.reshape(-1, width), axis=1, bitorder="little")
        shares = [self._missed[one] / max(one.bit_count(), 1) * self._piece_time for one in sets]
        # cumsum adds in order; the order of sum is not defined.
        loads = np.cumsum(holds * np.array(shares)[:, np.newaxis], axis=0)[-1]
        found: list[float] = loads[: self._num_replicas].tolist()
        return found

    def _count(self, keys: Sequence[int], num_cached: int, sign: int) -> None:
        for place, key in enumerate(keys):
            uses = self._uses.setdefault(key, Uses())
            self._file(uses, -1)
            uses.number += sign
            uses.missed += sign * (place >= num_cached)
            uses.holders = self._index.holders(key)
            if uses.number:
                self._file(uses, 1)
            else:
                del self._uses[key]

    def _file(self, uses: Uses, sign: int) -> None:
        """Add the misses of an entry to those of its set of holders, or subtract them."""
        if uses.missed:
            self._missed[uses.holders] += sign * uses.missed
            if not self._missed[uses.holders]:
                del self._missed[uses.holders]
