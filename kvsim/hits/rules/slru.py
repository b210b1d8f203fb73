"""Segmented LRU: a block used once cannot evict one that was used again.

A new block joins the probationary segment; when it is used again, it joins the protected segment,
at most four fifths of the cache. The oldest blocks beyond that limit return to the newest end of
the probationary segment. The victim is the oldest block of that segment (Karedla, Love and Wherry,
Caching strategies to improve disk system performance, IEEE Computer 1994). Blocks of the current
request are not evicted; of two blocks of one request, the one nearer to the root is newer.
"""

from __future__ import annotations

from kvsim.hits.rules.queues import Link, Queues, append, clear, unlink
from kvsim.hits.rules.requests import Requests, num_hits, tokens_of
from kvsim.records.record import NONE
from kvsim.rules.eviction.shares import most_protected

PROBATION, PROTECTED = 0, 1  # queues; ``place`` holds a block's queue plus 1, or 0


def oldest_unused(links: list[Link], end: int, i: int) -> int:
    """Return the oldest block of a queue that request i does not use, or ``NONE``."""
    block = links[end].newer
    while block != end:
        if links[block].user != i:
            return block
        block = links[block].newer
    return NONE


def promote(queues: Queues, block: int, target: int) -> None:
    """Move a cached block to the newest end of a segment."""
    unlink(queues.links, block)
    queues.lengths[queues.place[block] - 1] -= 1
    append(queues.links, queues.end + target, block)
    queues.lengths[target] += 1
    queues.place[block] = target + 1


def slru_hits(requests: Requests, queues: Queues, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    segment, links, lengths = queues.place, queues.links, queues.lengths
    clear(queues, requests.num_nodes, 2)
    most, total = most_protected(size), 0
    for i in range(requests.number):
        begin, stop = requests.offsets[i], requests.offsets[i + 1]
        total += tokens_of(requests, i, num_hits(requests, i, segment))
        num_own = 0
        for at in range(stop - 1, begin - 1, -1):
            block = requests.paths[at]
            if segment[block]:
                links[block].user = i
                promote(queues, block, PROTECTED)
                num_own += 1
        while lengths[PROTECTED] > most:
            promote(queues, links[queues.end + PROTECTED].newer, PROBATION)
        for at in range(begin, stop):
            block = requests.paths[at]
            if segment[block]:
                continue
            if num_own == size:
                break
            if lengths[PROBATION] + lengths[PROTECTED] == size:
                victim = oldest_unused(links, queues.end + PROBATION, i)
                if victim == NONE:
                    victim = oldest_unused(links, queues.end + PROTECTED, i)
                unlink(links, victim)
                lengths[segment[victim] - 1] -= 1
                segment[victim] = 0
            append(links, queues.end + PROBATION, block)
            lengths[PROBATION] += 1
            links[block].user, segment[block] = i, PROBATION + 1
            num_own += 1
        for at in range(stop - 1, begin - 1, -1):
            block = requests.paths[at]
            if segment[block]:
                promote(queues, block, segment[block] - 1)
    return total
