"""Compact encoding of integers as text for a page."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def pack(values: ArrayLike) -> str:
    """Return integers as a text: the differences between neighbours, packed.

    ``unpackInts`` in ``assets/unpack.js`` reads it. The differences 0, -1, 1, -2, ... are numbered
    0, 1, 2, 3, ...; each number is written with seven bits per byte, the lowest bits first.
    """
    numbers = np.asarray(values, np.int64)
    steps = np.diff(numbers, prepend=0)
    folded = (steps << 1) ^ (steps >> 63)
    return pack_bytes(_varints(folded.astype(np.uint64)))


def pack_bytes(content: bytes) -> str:
    """Return bytes, deflated, as base64."""
    return base64.b64encode(zlib.compress(content, 6)).decode()


def _varints(numbers: NDArray[np.uint64]) -> bytes:
    """Write numbers with seven bits per byte; the highest bit is set if more bytes follow."""
    lengths = np.ones(len(numbers), np.int64)
    rest = numbers >> np.uint64(7)
    while rest.any():
        lengths += rest > 0
        rest = rest >> np.uint64(7)
    ends = lengths.cumsum()
    out: NDArray[Any] = np.zeros(int(ends[-1]) if len(ends) else 0, np.uint8)
    for k in range(int(lengths.max(initial=0))):
        there = lengths > k
        bits = (numbers[there] >> np.uint64(7 * k)) & np.uint64(0x7F)
        more = (lengths[there] > k + 1).astype(np.uint64) << np.uint64(7)
        out[(ends - lengths)[there] + k] = (bits | more).astype(np.uint8)
    return out.tobytes()
