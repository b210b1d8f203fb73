"""FIFO: evicts the block that was inserted first, regardless of its position in a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.hits.rules.requests import num_hits, tokens_of

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Requests


def fifo_hits(requests: Requests, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks; a request may evict its own blocks."""
    paths, offsets = requests[0], requests[1]
    is_cached = np.zeros(requests[4][1], np.uint8)
    queue, front, total = np.full(size, -1, np.int32), 0, 0
    for i in range(len(offsets) - 1):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        for at in range(offsets[i], offsets[i + 1]):
            block = paths[at]
            if is_cached[block]:
                continue
            if queue[front] >= 0:
                is_cached[queue[front]] = 0
            is_cached[block] = 1
            queue[front] = block
            front = front + 1 if front + 1 < size else 0
    return total
