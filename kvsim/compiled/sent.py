"""The replicas to which a content was ever sent: no other replica can hold its blocks.

This is not a rule of the simulation, but a bound that saves look-ups. Contents share rows of the
table, and replicas share bits, so the result may contain too many replicas but lacks none.
"""

from __future__ import annotations

import numpy as np

from kvsim.rules.blocks.keys import times_plus


def row_of(sent, content):
    return (times_plus(content, 0x9E3779B97F4A7C15, 0) >> 32) & (len(sent) - 1)


def record_sent(sent, contents, output, place):
    """Record that a prompt's contents, and the content of its output, were sent to a replica.

    ``sent`` is int64 with a power of two of rows; bit ``place % 64`` of a content's row is set.
    """
    bit = np.int64(1) << np.int64(place & 63)
    for k in range(len(contents)):
        sent[row_of(sent, contents[k])] |= bit
    sent[row_of(sent, output)] |= bit


def bound_depths(sent, contents, lengths, size, most):
    """Set ``most`` to the most leading blocks of a prompt that each replica can hold.

    These are the blocks before the first content that was never sent there. ``contents`` and
    ``lengths`` (tokens) describe the prompt's segments; ``size`` is the tokens of a block.
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
