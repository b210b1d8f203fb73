"""Records of eviction policies: what they note about blocks, and blocks by rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import Record, Short, Tiny


class Eviction(IntEnum):
    """Whose rules name the next victim. PYTHON is a policy that is no rule."""

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
    """What a policy other than LRU notes about a block that carries a key."""

    rank: int = 0  # the smallest goes first; no two free blocks have the same rank and order
    order: int = 0  # among equal ranks
    place: Short = 0  # in its ranking, while the block is free
    num_hits: Short = 0  # those that still count
    ranking: Tiny = 0  # which one is the block's


@dataclass(slots=True)
class Ranking(Record):
    """Free blocks by rank: a binary heap, the smallest rank first.

    Where the policy has queues of all cached blocks, the ranking stands for one of them:
    ``num_queued`` counts its blocks, those in use included.
    """

    blocks: list[int] = field(default_factory=list)
    length: int = 0
    num_queued: int = 0
