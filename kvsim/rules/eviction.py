"""Which cached, unreferenced block gives way first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.python import (
    python_arrived,
    python_cached,
    python_evict,
    python_hit,
    python_insert,
    python_remove,
)
from kvsim.rules.queue import append, remove

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool, Holding
    from kvsim.records.request import Request

LRU = 0
PYTHON_POLICY = 9  # a policy that is no rule


def note_arrival(pool: BlockPool, request: Request, holding: Holding, block_size: int) -> None:
    """Tell a policy that knows the future that a prompt has been admitted."""
    if pool.policy == PYTHON_POLICY:
        python_arrived(pool, request, holding, block_size)


def insert_victim(pool: BlockPool, k: int) -> None:
    """Take in a block whose last reference has gone."""
    pool.num_cached += 1
    if pool.policy == LRU:
        append(pool.cached, pool.blocks, k)
    else:
        python_insert(pool, k)


def remove_victim(pool: BlockPool, k: int) -> None:
    """Let go of a block that a prefix hit references again."""
    pool.num_cached -= 1
    if pool.policy == LRU:
        remove(pool.cached, pool.blocks, k)
    else:
        python_remove(pool, k)


def evict(pool: BlockPool) -> int:
    """Remove and return the cached block to give away."""
    pool.num_cached -= 1
    if pool.policy == LRU:
        k = pool.cached.head
        remove(pool.cached, pool.blocks, k)
        return k
    return python_evict(pool)


def note_cached(pool: BlockPool, k: int) -> None:
    """Tell the policy that a block in use has got its content's key."""
    if pool.policy != LRU:
        python_cached(pool, k)


def note_hit(pool: BlockPool, k: int) -> None:
    """Tell the policy of a prefix hit on a block, free or in use."""
    if pool.policy != LRU:
        python_hit(pool, k)
