"""ARC: uses of ghosts adapt the shares of once-used and of reused blocks in the cache.

Blocks used once are in T1, others in T2; the numbers of evicted blocks stay as ghosts in B1 and B2.
A use of a ghost in B1 makes the target size of T1 larger, and a use of one in B2 makes it smaller
(Megiddo and Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003, figure 4). Blocks
of the current request are not evicted; of two blocks of one request, the one nearer to the root is
newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.hits.rules.queues import NEWER, NOBODY, USER, append, empty_queues, unlink
from kvsim.hits.rules.requests import num_hits, tokens_of
from kvsim.hits.rules.slru import oldest_unused
from kvsim.rules.eviction.shares import evicts_t1, target_after

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Flags, Ints, Requests, Shorts

NOWHERE, T1, T2, B1, B2 = 0, 1, 2, 3, 4  # queue of a block, and index of the queue's length
TARGET = 0  # index of T1's target among the lengths


def shift(links: Shorts, lengths: Ints, place: Flags, block: int, target: int) -> None:
    """Move a block to the newest end of a queue, or remove it (``NOWHERE``)."""
    if place[block] != NOWHERE:
        unlink(links, block)
        lengths[place[block]] -= 1
    if target != NOWHERE:
        append(links, len(links) - 5 + target, block)
        lengths[target] += 1
    place[block] = target


def make_room(
    links: Shorts, lengths: Ints, place: Flags, is_cached: Flags, i: int, returns: bool
) -> None:
    """Evict a block, which becomes a ghost; ``returns``: the new block was a ghost in B2."""
    first = len(links) - 5
    source = T1 if evicts_t1(lengths[T1], lengths[TARGET], returns) else T2
    victim = oldest_unused(links, first + source, i)
    if victim == NOBODY:
        source = T1 + T2 - source
        victim = oldest_unused(links, first + source, i)
    is_cached[victim] = 0
    shift(links, lengths, place, victim, source + 2)


def drop_oldest(links: Shorts, lengths: Ints, place: Flags, queue: int) -> None:
    """Drop the oldest ghost of a queue."""
    if lengths[queue] > 0:
        shift(links, lengths, place, links[len(links) - 5 + queue, NEWER], NOWHERE)


def learn(lengths: Ints, place: int, size: int) -> None:
    """Move the target in favour of the queue of the ghost that is used again."""
    if place >= B1:
        target, in_b1 = lengths[TARGET], place == B1
        lengths[TARGET] = target_after(target, in_b1, lengths[B1], lengths[B2], size)


def arc_hits(requests: Requests, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    paths, offsets, num_nodes = requests[0], requests[1], requests[4][1]
    is_cached, place = np.zeros(num_nodes, np.uint8), np.zeros(num_nodes, np.uint8)
    links, lengths, total = empty_queues(num_nodes, 5), np.zeros(5, np.int64), 0
    for i in range(len(offsets) - 1):
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        num_own = 0
        for at in range(offsets[i], offsets[i + 1]):
            if is_cached[paths[at]]:
                links[paths[at], USER] = i
                shift(links, lengths, place, paths[at], T2)
                num_own += 1
        for at in range(offsets[i], offsets[i + 1]):
            block = paths[at]
            if is_cached[block]:
                continue
            if num_own == size:
                break
            was = int(place[block])
            learn(lengths, was, size)
            if lengths[T1] + lengths[T2] == size:
                make_room(links, lengths, place, is_cached, i, was == B2)
            shift(links, lengths, place, block, T1 if was == NOWHERE else T2)
            while lengths[T1] + lengths[B1] > size and lengths[B1] > 0:
                drop_oldest(links, lengths, place, B1)
            while lengths[1:].sum() > 2 * size:
                drop_oldest(links, lengths, place, B2)
            links[block, USER], is_cached[block] = i, 1
            num_own += 1
        for at in range(offsets[i + 1] - 1, offsets[i] - 1, -1):
            if is_cached[paths[at]]:
                shift(links, lengths, place, paths[at], int(place[paths[at]]))
    return total
