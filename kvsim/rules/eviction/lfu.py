"""LFU: evicts the block with the fewest hits since caching; on a tie, the least recently freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.eviction.ranking import insert_ranked

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool

ORDER_BITS = 36  # low bits of a rank that count frees; the hit count is in the 27 bits above


def cached_lfu(pool: BlockPool, k: int) -> None:
    pool.notes[k].num_hits = 0


def hit_lfu(pool: BlockPool, k: int) -> None:
    """Count a hit; the block's rank changes only when the block is freed again."""
    pool.notes[k].num_hits += 1


def insert_lfu(pool: BlockPool, k: int) -> None:
    """Rank a block that has lost its last reference."""
    pool.last_rank += 1
    pool.notes[k].rank = (pool.notes[k].num_hits << ORDER_BITS) + pool.last_rank
    insert_ranked(pool, k)
