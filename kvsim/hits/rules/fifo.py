"""FIFO: evicts the block that was inserted first, regardless of its position in a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.hits.rules.queues import clear
from kvsim.hits.rules.requests import num_hits, tokens_of

if TYPE_CHECKING:
    from kvsim.hits.rules.queues import Queues
    from kvsim.hits.rules.requests import Requests


def fifo_hits(requests: Requests, queues: Queues, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks; a request may evict its own blocks.

    The rows of the queue's links are used in turn, each for the block in its field ``older``.
    """
    is_cached, front, num_cached, total = queues.is_cached, 0, 0, 0
    clear(queues, requests.num_nodes, 0)
    for i in range(requests.number):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        for at in range(requests.offsets[i], requests.offsets[i + 1]):
            block = requests.paths[at]
            if is_cached[block]:
                continue
            if num_cached == size:
                is_cached[queues.links[front].older] = 0
            else:
                num_cached += 1
            is_cached[block] = 1
            queues.links[front].older = block
            front = front + 1 if front + 1 < size else 0
    return total
