"""Eviction order of cached, unreferenced blocks; vLLM's LRU evicts the least recently freed.

FIFO evicts the block that has been cached for the longest time. The other policies have their own
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.eviction import BELADY, FIFO, LFU, LRU, PYTHON_POLICY, S3FIFO, SIEVE
from kvsim.records.record import NONE
from kvsim.rules.blocks.array_queue import array_append, array_popleft, array_remove
from kvsim.rules.eviction.belady import admit_belady, evict_belady, insert_belady
from kvsim.rules.eviction.lfu import cached_lfu, hit_lfu, insert_lfu
from kvsim.rules.eviction.ranking import insert_ranked, is_cached, pop_first, set_rank
from kvsim.rules.eviction.s3fifo import cached_s3fifo, evict_s3fifo, hit_s3fifo
from kvsim.rules.eviction.sieve import cached_sieve, evict_sieve, hit_sieve, insert_sieve
from kvsim.rules.own_order import record_wrong
from kvsim.rules.python import (
    python_arrived,
    python_cached,
    python_evict,
    python_hit,
    python_insert,
    python_remove,
)

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool, RequestBlocks
    from kvsim.records.request import Request

#: The number of the operation of a user's policy that returns the victim.
EVICT = 2


def record_arrival(kv: KV, request: Request, own_blocks: RequestBlocks) -> None:
    """Notify a policy that uses the trace's future that a prompt is admitted."""
    if kv.pool.policy == BELADY:
        admit_belady(kv, request, own_blocks)
    elif kv.pool.policy == PYTHON_POLICY:
        python_arrived(kv, request, own_blocks)


def insert_victim(pool: BlockPool, k: int) -> None:
    """Add a block that has lost its last reference to the evictable blocks."""
    pool.num_cached += 1
    if pool.policy == LRU:
        array_append(pool.line, pool.blocks, k)
    elif pool.policy == LFU:
        insert_lfu(pool, k)
    elif pool.policy == SIEVE:
        insert_sieve(pool, k)
    elif pool.policy == BELADY:
        insert_belady(pool, k)
    elif pool.policy == PYTHON_POLICY:
        if pool.part.wrong == NONE:
            python_insert(pool, k)
    else:
        insert_ranked(pool, k)


def remove_victim(pool: BlockPool, k: int) -> None:
    """Remove a block from the evictable blocks when a prefix hit references it again."""
    pool.num_cached -= 1
    if pool.policy == LRU:
        array_remove(pool.line, pool.blocks, k)
    elif pool.policy == PYTHON_POLICY and pool.part.wrong == NONE:
        python_remove(pool, k)


def evict(pool: BlockPool) -> int:
    """Remove and return the cached block to evict."""
    pool.num_cached -= 1
    if pool.policy == LRU:
        return array_popleft(pool.line)
    return evict_ranked(pool)


def evict_ranked(pool: BlockPool) -> int:
    """As :func:`evict`, under any policy except LRU."""
    if pool.policy == S3FIFO:
        return evict_s3fifo(pool)
    if pool.policy == SIEVE:
        return evict_sieve(pool)
    if pool.policy == BELADY:
        return evict_belady(pool)
    if pool.policy == PYTHON_POLICY:
        return evict_by_own_rules(pool)
    return pop_first(pool, pool.rankings[0])


def evict_by_own_rules(pool: BlockPool) -> int:
    """Return the victim that a user's policy names.

    After the policy's first invalid answer, each victim is the next cached block by index, until
    the run ends and is refused.
    """
    if pool.part.wrong == NONE:
        k = python_evict(pool)
        if 0 <= k <= pool.num_usable and is_cached(pool, k):
            return k
        record_wrong(pool.part, EVICT, float(k))
    while not is_cached(pool, pool.hand):
        pool.hand = (pool.hand + 1) % (pool.num_usable + 1)
    return pool.hand


def record_cached(pool: BlockPool, k: int) -> None:
    """Notify the policy that a block in use has got a key."""
    if pool.policy == FIFO:
        set_rank(pool, k)
    elif pool.policy == LFU:
        cached_lfu(pool, k)
    elif pool.policy == S3FIFO:
        cached_s3fifo(pool, k)
    elif pool.policy == SIEVE:
        cached_sieve(pool, k)
    elif pool.policy == PYTHON_POLICY and pool.part.wrong == NONE:
        python_cached(pool, k)


def record_hit(pool: BlockPool, k: int) -> None:
    """Notify the policy of a prefix hit on a block, free or in use."""
    if pool.policy == LFU:
        hit_lfu(pool, k)
    elif pool.policy == S3FIFO:
        hit_s3fifo(pool, k)
    elif pool.policy == SIEVE:
        hit_sieve(pool, k)
    elif pool.policy == PYTHON_POLICY and pool.part.wrong == NONE:
        python_hit(pool, k)
