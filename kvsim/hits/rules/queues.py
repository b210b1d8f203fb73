"""Queues of blocks as linked lists: one row per block, then one sentinel row per queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsim.records.record import Record, Short, Tiny

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Requests


#: Most queues of a policy, and most counters.
NUM_COUNTERS = 5


@dataclass(slots=True)
class Link(Record):
    """A block: its neighbours in the queue, the last request that used it, and counted uses."""

    older: Short = 0
    newer: Short = 0
    user: Short = 0
    uses: Short = 0


@dataclass(slots=True)
class Queues(Record):
    """The state of a cache with queues.

    Attributes
    ----------
    is_cached : a flag per block
    place : what a policy notes per block, such as its queue
    links : blocks, and then the ends of queues
    lengths : lengths of the queues, and other counters of a policy
    end : index of the first end in ``links``
    """

    is_cached: list[Tiny] = field(default_factory=list)
    place: list[Tiny] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    end: int = 0


def clear(queues: Queues, num_nodes: int, num_queues: int) -> None:
    """Make the cache and all queues empty."""
    for block in range(num_nodes):
        queues.is_cached[block] = queues.place[block] = 0
    queues.end = num_nodes
    for k in range(num_queues):
        end = queues.links[num_nodes + k]
        end.older = end.newer = num_nodes + k
    for k in range(NUM_COUNTERS):
        queues.lengths[k] = 0


def append(links: list[Link], end: int, block: int) -> None:
    """Append a block as the newest of a queue."""
    newest = links[end].older
    links[block].older, links[block].newer = newest, end
    links[newest].newer = links[end].older = block


def unlink(links: list[Link], block: int) -> None:
    older, newer = links[block].older, links[block].newer
    links[older].newer, links[newer].older = newer, older


def use_cached(requests: Requests, i: int, queues: Queues, most_uses: int) -> int:
    """Count a use of each cached block of request i; return the number of these blocks."""
    number = 0
    for at in range(requests.offsets[i], requests.offsets[i + 1]):
        block = requests.paths[at]
        if queues.is_cached[block]:
            link = queues.links[block]
            link.user, link.uses = i, min(link.uses + 1, most_uses)
            number += 1
    return number
