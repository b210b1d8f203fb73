"""Prefetches of memory that compiled code is about to read.

A pool's blocks and hash map are read in an unpredictable order, and the pools of a fleet do not fit
into the CPU's caches. Prefetching changes no result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.records.eviction import LRU
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.records.paged import BlockPool, BlockTable

#: Prefetch distance in blocks: work on a block takes about 10 ns, a memory access 100 ns.
AHEAD = 8


def prefetch_item(rows: Sequence[Any], place: int) -> None:
    """Prefetch an item of a list; the index may be out of range. Does nothing in Python."""
    del rows, place


def prefetch_whole(rows: Sequence[Any], place: int) -> None:
    """Prefetch an item that spans several cache lines. Does nothing in Python."""
    del rows, place


def prefetch_keys(pool: BlockPool, keys: Sequence[int], first: int, stop: int, group: int) -> None:
    """Prefetch buckets and blocks of a look-up's first keys; :func:`prefetch_key` continues."""
    for at in range(first, min(first + 2 * AHEAD, stop)):
        prefetch_item(pool.buckets, (keys[at] ^ group) & pool.bucket_mask)
    for at in range(first, min(first + AHEAD, stop)):
        prefetch_item(pool.blocks, pool.buckets[(keys[at] ^ group) & pool.bucket_mask])


def prefetch_key(pool: BlockPool, keys: Sequence[int], at: int, last: int, group: int) -> None:
    """Prefetch the bucket and the block of keys that follow the key at index ``at``."""
    key = keys[min(at + 2 * AHEAD, last)]
    prefetch_item(pool.buckets, (key ^ group) & pool.bucket_mask)
    key = keys[min(at + AHEAD, last)]
    prefetch_item(pool.blocks, pool.buckets[(key ^ group) & pool.bucket_mask])


def prefetch_entry(pool: BlockPool, table: BlockTable, place: int) -> None:
    """Prefetch the block at an index of a table, unless the index is negative."""
    if place >= 0:
        prefetch_item(pool.blocks, table.blocks[place])


def prefetch_victims(pool: BlockPool, number: int) -> None:
    """Prefetch the first eviction candidates; :func:`prefetch_victim` continues."""
    if pool.policy == LRU:
        line = pool.line
        for at in range(line.first, min(line.first + min(number, 2 * AHEAD), line.stop)):
            prefetch_item(pool.blocks, line.entries[at])


def prefetch_buckets(pool: BlockPool, number: int) -> None:
    """Prefetch the hash buckets of the first eviction candidates."""
    if pool.policy == LRU:
        line = pool.line
        for at in range(line.first, min(line.first + min(number, AHEAD), line.stop)):
            prefetch_bucket(pool, line.entries[at])


def prefetch_victim(pool: BlockPool) -> None:
    """Prefetch the candidate at position 2 * AHEAD, and the bucket of the candidate at AHEAD."""
    if pool.policy != LRU:
        return
    at, line = pool.line.first + 2 * AHEAD, pool.line
    if at < line.stop:
        prefetch_item(pool.blocks, line.entries[at])
    at -= AHEAD
    if at < line.stop:
        prefetch_bucket(pool, line.entries[at])


def prefetch_bucket(pool: BlockPool, k: int) -> None:
    """Prefetch the hash bucket of a block's key."""
    if k != NONE:
        block = pool.blocks[k]
        prefetch_item(pool.buckets, (block.key ^ block.group) & pool.bucket_mask)
