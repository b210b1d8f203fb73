"""LRU at all sizes in one pass.

Blocks are ordered by the last request that used them; among blocks of one request, those nearer to
the root are newer. An ancestor is then never older than its descendants: the oldest block is a
leaf, and a cache of C blocks holds the C newest (Mattson et al., Evaluation techniques for storage
hierarchies, IBM Systems Journal 1970). The distance of a block is the number of newer blocks, plus
one; the block hits in every cache of at least this number of blocks. Along a path distances never
fall, and blocks that one request used last have consecutive distances.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsim.records.record import Record, Short

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Requests


@dataclass(slots=True)
class Distances(Record):
    """The state of the pass, of which ``hits`` is the result.

    Attributes
    ----------
    slope : second differences of the hit tokens by size
    step : first differences, in addition
    hits : hit tokens at every size from 0 to ``num_blocks``
    last : one plus the last request that used the block, or 0
    used : Fenwick tree over requests: number of blocks that a request used last
    """

    slope: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    hits: list[int] = field(default_factory=list)
    last: list[Short] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    num_blocks: int = 0


def add_until(tree: list[int], length: int, at: int, change: int) -> None:
    """Add ``change`` to an entry of a Fenwick tree."""
    at += 1
    while at <= length:
        tree[at - 1] += change
        at += at & -at


def sum_until(tree: list[int], stop: int) -> int:
    """Return the sum of the entries before ``stop``."""
    total = 0
    while stop > 0:
        total += tree[stop - 1]
        stop -= stop & -stop
    return total


def sum_up(found: Distances) -> None:
    """Sum the differences up to the hit tokens."""
    slope, total = 0, 0
    for size in range(found.num_blocks + 1):
        slope += found.slope[size]
        total += found.step[size] + slope
        found.hits[size] = total


def lru_hits(requests: Requests, found: Distances) -> int:
    """Find the hit tokens at every cache size."""
    paths, last, used, number = requests.paths, found.last, found.used, requests.number
    num_used, block_size = 0, requests.block_size
    for i in range(number):
        first, stop = requests.offsets[i], requests.offsets[i + 1]
        at, looked_up = first, first + requests.num_lookups[i]
        while at < stop:
            begin, user = at, last[paths[at]]
            while at < stop and last[paths[at]] == user:
                last[paths[at]] = i + 1
                at += 1
            if user == 0:
                num_used += at - begin
                continue
            hits = min(at, looked_up) - begin
            if i >= requests.first_measured and hits > 0:
                distance = num_used - sum_until(used, user) + 1
                found.slope[distance] += block_size
                found.slope[distance + hits] -= block_size
                surplus = (begin + hits - first) * block_size - requests.num_tokens[i]
                found.step[distance + hits - 1] -= max(surplus, 0)
            add_until(used, number, user - 1, begin - at)
        add_until(used, number, i, stop - first)
    sum_up(found)
    return 0
