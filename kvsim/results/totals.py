"""Sums over one replica's whole run: exact time integrals, counts, and token gaps."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import numpy as np

from kvsim.records.engine import Totals as Sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.kv.usage import Cause


@dataclass
class Totals(Sums):
    """Sums that a replica accumulates and the metrics read.

    The ``*_seconds`` are integrals over time: of bytes for memory, of requests for queues, and for
    ``usage_seconds`` of the share of slots or blocks in use. Every sum is a sequence of ``+=`` in
    the order of time, so that both backends agree to the bit. ``token_gaps`` counts the gaps
    between tokens by :func:`gap_bin`.
    """

    token_gaps: dict[int, int] = field(default_factory=dict)

    def held_seconds(self, cause: Cause) -> float:
        """Return the time integral of the bytes held by a cause, in byte-seconds."""
        seconds: float = getattr(self, f"{cause.column}_seconds")
        return seconds

    def add(self, other: Totals) -> None:
        """Merge another replica's sums into this one. Mutates."""
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if isinstance(mine, dict):
                for key, count in theirs.items():
                    mine[key] = mine.get(key, 0) + count
            elif f.name.startswith("peak"):
                setattr(self, f.name, max(mine, theirs))
            else:
                setattr(self, f.name, mine + theirs)


def gap_bin(seconds: float) -> int:
    """Return the bin of a gap between two tokens: the float's exponent and top 10 mantissa bits."""
    bits: int = struct.unpack("<q", struct.pack("<d", seconds))[0]
    return bits >> 42


def bin_middles(keys: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the middles of bins, in seconds."""
    return ((keys << 42) | (1 << 41)).view(np.float64)


def bin_middle(key: int) -> float:
    """Return the middle of a bin, in seconds; it differs from each gap in it by at most 0.05 %."""
    middle: float = struct.unpack("<d", struct.pack("<q", (key << 42) | (1 << 41)))[0]
    return middle
