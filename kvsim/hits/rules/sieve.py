"""SIEVE: one queue, and a hand that evicts the first block not hit since it last passed.

A new block joins the newest end of the queue, and a hit marks a block. The hand moves from the
oldest block to the newest, and again from the oldest. It removes the marks of marked blocks, and
evicts the first unmarked block (Zhang et al., SIEVE is simpler than LRU, NSDI 2024, algorithm 1).
It skips the blocks of the current request.
"""

from __future__ import annotations

from kvsim.hits.rules.queues import Link, Queues, append, clear, unlink, use_cached
from kvsim.hits.rules.requests import Requests, num_hits, tokens_of


def next_victim(links: list[Link], hand: int, end: int, i: int) -> int:
    """Move the hand to the block to evict, which request i does not use."""
    while hand == end or links[hand].user == i or links[hand].uses > 0:
        if links[hand].user != i:
            links[hand].uses = 0
        hand = links[hand].newer
    return hand


def sieve_hits(requests: Requests, queues: Queues, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    is_cached, links, end = queues.is_cached, queues.links, requests.num_nodes
    clear(queues, end, 1)
    hand, num_cached, total = end, 0, 0
    for i in range(requests.number):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        num_own = use_cached(requests, i, queues, 1)
        for at in range(requests.offsets[i], requests.offsets[i + 1]):
            block = requests.paths[at]
            if is_cached[block]:
                continue
            if num_own == size:
                break
            if num_cached == size:
                victim = next_victim(links, hand, end, i)
                hand = links[victim].newer
                unlink(links, victim)
                is_cached[victim] = 0
                num_cached -= 1
            append(links, end, block)
            links[block].user, links[block].uses, is_cached[block] = i, 0, 1
            num_cached, num_own = num_cached + 1, num_own + 1
    return total
