"""The replicas to which a content was ever sent; no other replica can hold its blocks.

It is not a simulated rule, but a bound that saves reads: a row of the table is shared by
contents and a bit by places, so it may name too many, and never too few.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def row_of(sent, content):
    mixed = np.uint64(content) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64(mixed >> np.uint64(32)) & (len(sent) - 1)


@njit(cache=True)
def note_sent(sent, contents, output, place):
    """Record that contents were sent to a replica, and the content of the output there.

    ``sent`` has a power of two of rows, int64: bit ``place % 64`` of all contents that share a row.
    """
    bit = np.int64(1) << np.int64(place & 63)
    for k in range(len(contents)):
        sent[row_of(sent, contents[k])] |= bit
    sent[row_of(sent, output)] |= bit


@njit(cache=True)
def bound_depths(sent, contents, lengths, size, most):
    """Write a bound of a prompt's blocks on each replica: those before a missing content.

    ``contents`` and ``lengths`` (tokens) are those of its segments, ``size`` a block's tokens;
    ``most`` gets the blocks by place.
    """
    left, before = np.int64(-1), 0
    for k in range(len(contents)):
        bits = sent[row_of(sent, contents[k])]
        if left & ~bits:
            for place in range(len(most)):
                if (left & ~bits) >> np.int64(place & 63) & 1:
                    most[place] = before // size
            left &= bits
            if left == 0:
                return
        before += lengths[k]
    for place in range(len(most)):
        if left >> np.int64(place & 63) & 1:
            most[place] = before // size
