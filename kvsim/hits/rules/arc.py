"""ARC: uses of ghosts adapt the shares of once-used and of reused blocks in the cache.

Blocks used once are in T1, others in T2; the numbers of evicted blocks stay as ghosts in B1 and B2.
A use of a ghost in B1 makes the target size of T1 larger, and a use of one in B2 makes it smaller
(Megiddo and Modha, ARC: a self-tuning, low overhead replacement cache, FAST 2003, figure 4). Blocks
of the current request are not evicted; of two blocks of one request, the one nearer to the root is
newer.
"""

from __future__ import annotations

from kvsim.hits.rules.queues import Queues, append, clear, unlink
from kvsim.hits.rules.requests import Requests, num_hits, tokens_of
from kvsim.hits.rules.slru import oldest_unused
from kvsim.records.record import NONE
from kvsim.rules.eviction.shares import evicts_t1, target_after

NOWHERE, T1, T2, B1, B2 = 0, 1, 2, 3, 4  # queue of a block, and index of the queue's length
TARGET = 0  # index of T1's target among the lengths


def shift(queues: Queues, block: int, target: int) -> None:
    """Move a block to the newest end of a queue, or remove it (``NOWHERE``)."""
    before = queues.place[block]
    if before != NOWHERE:
        unlink(queues.links, block)
        queues.lengths[before] -= 1
    if target != NOWHERE:
        append(queues.links, queues.end + target, block)
        queues.lengths[target] += 1
    queues.place[block] = target


def make_room(queues: Queues, i: int, returns: bool) -> None:
    """Evict a block, which becomes a ghost; ``returns``: the new block was a ghost in B2."""
    lengths = queues.lengths
    source = T1 if evicts_t1(lengths[T1], lengths[TARGET], returns) else T2
    victim = oldest_unused(queues.links, queues.end + source, i)
    if victim == NONE:
        source = T1 + T2 - source
        victim = oldest_unused(queues.links, queues.end + source, i)
    queues.is_cached[victim] = 0
    shift(queues, victim, source + 2)


def drop_oldest(queues: Queues, queue: int) -> None:
    """Drop the oldest ghost of a queue."""
    if queues.lengths[queue] > 0:
        shift(queues, queues.links[queues.end + queue].newer, NOWHERE)


def drop_ghosts(queues: Queues, size: int) -> None:
    """Keep at most ``size`` blocks and ghosts of T1, and twice as many of both."""
    lengths = queues.lengths
    while lengths[T1] + lengths[B1] > size and lengths[B1] > 0:
        drop_oldest(queues, B1)
    while lengths[T1] + lengths[T2] + lengths[B1] + lengths[B2] > 2 * size:
        drop_oldest(queues, B2)


def learn(lengths: list[int], place: int, size: int) -> None:
    """Move the target in favour of the queue of the ghost that is used again."""
    if place >= B1:
        target, in_b1 = lengths[TARGET], place == B1
        lengths[TARGET] = target_after(target, in_b1, lengths[B1], lengths[B2], size)


def arc_hits(requests: Requests, queues: Queues, size: int) -> int:
    """Return the hit tokens of a cache of ``size`` blocks."""
    is_cached, place, lengths, total = queues.is_cached, queues.place, queues.lengths, 0
    clear(queues, requests.num_nodes, 5)
    for i in range(requests.number):
        begin, stop = requests.offsets[i], requests.offsets[i + 1]
        total += tokens_of(requests, i, num_hits(requests, i, is_cached))
        num_own = 0
        for at in range(begin, stop):
            block = requests.paths[at]
            if is_cached[block]:
                queues.links[block].user = i
                shift(queues, block, T2)
                num_own += 1
        for at in range(begin, stop):
            block = requests.paths[at]
            if is_cached[block]:
                continue
            if num_own == size:
                break
            was = place[block]
            learn(lengths, was, size)
            if lengths[T1] + lengths[T2] == size:
                make_room(queues, i, was == B2)
            shift(queues, block, T1 if was == NOWHERE else T2)
            drop_ghosts(queues, size)
            queues.links[block].user, is_cached[block] = i, 1
            num_own += 1
        for at in range(stop - 1, begin - 1, -1):
            block = requests.paths[at]
            if is_cached[block]:
                shift(queues, block, place[block])
    return total
