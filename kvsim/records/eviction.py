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
    PYTHON = 9


# Rules compare with these; compiled code takes a module's ints for constants.
LRU, FIFO, LFU, S3FIFO, SIEVE, PYTHON_POLICY = (int(policy) for policy in Eviction)


@dataclass(slots=True)
class Note(Record):
    """The data of a policy other than LRU about a block that carries a key."""

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

    If the policy has queues of cached blocks, the ranking stands for one queue: ``num_queued``
    counts the queue's blocks, those in use included.
    """

    entries: list[Ranked] = field(default_factory=list)
    length: int = 0
    num_queued: int = 0
