"""Records of eviction policies: their data per block, and blocks by rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import Record, Short, Tiny


class Eviction(IntEnum):
    """The policy that names the next victim. PYTHON is one written in Python, without rules."""

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

    rank: int = 0  # the smallest goes first; no two blocks have the same
    num_hits: Short = 0  # those that still count
    ranking: Tiny = 0  # which one is the block's
    has_entry: Tiny = 0  # 1 while it has one there


@dataclass(slots=True)
class Ranked(Record):
    """An entry of a ranking, with the rank at its insertion."""

    rank: int = 0
    block: int = 0


@dataclass(slots=True)
class Ranking(Record):
    """Free blocks by rank, the smallest first: a binary heap, a place for every block.

    Where the policy has queues of all cached blocks, the ranking stands for one of them:
    ``num_queued`` counts its blocks, those in use included.
    """

    entries: list[Ranked] = field(default_factory=list)
    length: int = 0
    num_queued: int = 0
