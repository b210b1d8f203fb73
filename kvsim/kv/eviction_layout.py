"""The memory of what an eviction policy notes; see :mod:`kvsim.rules.eviction`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.eviction import FIFO, LFU, LRU
from kvsim.kv.s3fifo import S3FIFO
from kvsim.kv.sieve import Sieve
from kvsim.records.contents import Content
from kvsim.records.eviction import Eviction, Note, Ranked, Ranking

if TYPE_CHECKING:
    from kvsim.kv.eviction import EvictionPolicy
    from kvsim.records.contents import Contents
    from kvsim.records.memory import Memory
    from kvsim.records.paged import BlockPool

#: Policies that are rules.
RULES: dict[type[EvictionPolicy], Eviction] = {
    LRU: Eviction.LRU,
    FIFO: Eviction.FIFO,
    LFU: Eviction.LFU,
    S3FIFO: Eviction.S3FIFO,
    Sieve: Eviction.SIEVE,
}


def lay_out_eviction(memory: Memory, pool: BlockPool, policy: EvictionPolicy) -> None:
    """Lay out what a policy notes about the blocks of a pool; ``policy`` itself if it is no rule.

    A subclass of a built-in policy is its author's own, and no rule.
    """
    rule = RULES.get(type(policy), Eviction.PYTHON)
    num_blocks = pool.num_usable + 1
    pool.policy = int(rule)
    if rule == Eviction.PYTHON:
        pool.python = policy
    elif rule != Eviction.LRU:
        pool.notes = memory.records(Note, num_blocks)
        pool.rankings = memory.records(Ranking, 2)
        for queue in range(2):
            pool.rankings[queue].entries = memory.room(Ranked, num_blocks)
    if rule == Eviction.S3FIFO:
        lay_out_contents(memory, pool.ghosts, num_blocks)


def lay_out_contents(memory: Memory, contents: Contents, count: int) -> None:
    """Lay out room to remember so many contents; what is never touched is never really taken."""
    num_buckets = 1 << max(2 * count - 1, 1).bit_length()
    contents.rows = memory.room(Content, count + 2)  # one comes before one goes; none is place 0
    contents.buckets = memory.ints(num_buckets)
    contents.bucket_mask = num_buckets - 1
