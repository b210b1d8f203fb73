"""Records of eviction policies: their data per block, and blocks by rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import Record, Short, Tiny


class Eviction(IntEnum):
    """The policy that names the next victim. PYTHON is a user's policy."""

    LRU = 0
    FIFO = 1
    LFU = 2
    S3FIFO = 3
    SIEVE = 4
    BELADY = 5
    PYTHON = 9


# Rules compare with these; compiled code takes a module's ints for constants.
LRU, FIFO, LFU, S3FIFO, SIEVE, BELADY, PYTHON_POLICY = (int(policy) for policy in Eviction)


@dataclass(slots=True)
class Note(Record):
    """An eviction policy's data about a block with a key; LRU has none."""

    rank: int = 0  # unique; the smallest is evicted first
    num_hits: Short = 0  # hits that still count
    ranking: Tiny = 0  # index of the block's ranking
    has_entry: Tiny = 0  # 1 while the block has an entry in that ranking


@dataclass(slots=True)
class Ranked(Record):
    """An entry of a ranking, with the rank at its insertion."""

    rank: int = 0
    block: int = 0


@dataclass(slots=True)
class Ranking(Record):
    """Free blocks by rank, the smallest first: a binary heap with room for every block.

    A policy with several queues of cached blocks has one ranking per queue; ``num_queued`` counts
    all blocks of the queue, also those in use.
    """

    entries: list[Ranked] = field(default_factory=list)
    length: int = 0
    num_queued: int = 0


@dataclass(slots=True)
class Foresight(Record):
    """BELADY: the uses of the trace's contents; each list is by content, in order of the keys."""

    keys: list[int] = field(default_factory=list)
    num_keys: int = 0
    depths: list[int] = field(default_factory=list)  # index of the content's block in a prompt
    next_uses: list[int] = field(default_factory=list)  # index in ``users`` of its next use
    ends: list[int] = field(default_factory=list)  # index in ``users`` after its last use
    users: list[int] = field(default_factory=list)  # rows of requests, a content's together
    admitted: list[int] = field(default_factory=list)  # by row: 1 after the first admission
