"""Sums over a whole run of one replica: exact time integrals, counts, and token gaps."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, fields

from kvsim.kv.usage import HELD, Cause


@dataclass
class Totals:
    """Accumulated by a backend, read by the metrics.

    The ``*_seconds`` are integrals over time: of bytes for memory, of requests for queues, of
    used slots or blocks as a share of all for ``usage_seconds``. Every sum is a sequence of ``+=``
    in the order of time, so that backends agree to the bit.
    """

    held_seconds: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(HELD, 0.0))
    unallocated_seconds: float = 0.0
    cached_seconds: float = 0.0
    usage_seconds: float = 0.0
    heap_active_seconds: float = 0.0  # of managers over a caching allocator
    heap_reserved_seconds: float = 0.0
    running_seconds: float = 0.0
    waiting_seconds: float = 0.0
    refused_seconds: float = 0.0  # time the queue's head stood refused for lack of KV room
    running_while_refused_seconds: float = 0.0
    peak_usage: float = 0.0
    peak_running: int = 0
    num_steps: int = 0
    num_preemptions: int = 0
    num_recomputed_tokens: int = 0
    num_allocation_failures: int = 0
    fetched_bytes: int = 0  # from host memory to the GPU, beside computation
    stored_bytes: int = 0
    paged_in_bytes: int = 0  # in page faults
    paged_out_bytes: int = 0
    token_gaps: dict[int, int] = field(default_factory=dict)  # bin -> tokens

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
    """Bin of a gap between two tokens: the float's exponent and its top 10 mantissa bits."""
    bits: int = struct.unpack("<q", struct.pack("<d", seconds))[0]
    return bits >> 42


def bin_middle(key: int) -> float:
    """Middle of a bin, in seconds; no gap in the bin is further than 0.05 % away."""
    middle: float = struct.unpack("<d", struct.pack("<q", (key << 42) | (1 << 41)))[0]
    return middle
