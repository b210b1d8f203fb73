"""SIEVE: one queue, and a hand that evicts the first block not hit since it last passed.

A new block joins the newest end of the queue, and a hit marks a block. The hand moves from the
oldest block to the newest, and again from the oldest. It removes the marks of marked blocks, and
evicts the first unmarked block (Zhang et al., SIEVE is simpler than LRU, NSDI 2024, algorithm 1).
It skips the blocks of the current request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.hits.rules.queues import NEWER, USER, USES, append, empty_queues, unlink, use_cached
from kvsim.hits.rules.requests import num_hits, tokens_of

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Requests, Shorts


def next_victim(links: Shorts, hand: int, i: int) -> int:
    """Move the hand to the block to evict, which request i does not use."""
    end = len(links) - 1
    while hand == end or links[hand, USER] == i or links[hand, USES] > 0:
        if links[hand, USER] != i:
            links[hand, USES] = 0
        hand = links[hand, NEWER]
    return hand


def sieve_hits(requests: Requests, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    paths, offsets, num_nodes = requests[0], requests[1], requests[4][1]
    is_cached, links = np.zeros(num_nodes, np.uint8), empty_queues(num_nodes, 1)
    hand, num_cached, total = num_nodes, 0, 0
    for i in range(len(offsets) - 1):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        num_own = use_cached(requests, i, is_cached, links, 1)
        for at in range(offsets[i], offsets[i + 1]):
            block = paths[at]
            if is_cached[block]:
                continue
            if num_own == size:
                break
            if num_cached == size:
                victim = next_victim(links, hand, i)
                hand = links[victim, NEWER]
                unlink(links, victim)
                is_cached[victim] = 0
                num_cached -= 1
            append(links, num_nodes, block)
            links[block, USER], links[block, USES], is_cached[block] = i, 0, 1
            num_cached, num_own = num_cached + 1, num_own + 1
    return total
