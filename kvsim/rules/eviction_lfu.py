"""LFU: fewest prefix hits since it was cached first; among equals, least recently freed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.ranking import push

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool


def cached_lfu(pool: BlockPool, k: int) -> None:
    """Begin to count a block's hits."""
    pool.notes[k].num_hits = 0


def hit_lfu(pool: BlockPool, k: int) -> None:
    """Count a hit; the rank of a free block stays until it is free again."""
    pool.notes[k].num_hits += 1


def insert_lfu(pool: BlockPool, k: int) -> None:
    """Rank a block whose last reference has gone."""
    note = pool.notes[k]
    pool.num_ranked += 1
    note.rank = note.num_hits
    note.order = pool.num_ranked
    push(pool.rankings[0], pool.notes, k)
