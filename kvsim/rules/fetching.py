"""Memory that is needed soon is asked for early, so that compiled code does not wait for it.

A pool's blocks and its hash map are read in no order that the machine could foresee, and the pools
of a fleet do not fit its caches. Nothing here changes what happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.records.eviction import LRU
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.records.paged import BlockPool, BlockTable

#: How many blocks early: a block takes some 10 ns, memory 100.
AHEAD = 8


def ask(rows: Sequence[Any], place: int) -> None:
    """Ask for an item of a list, which may be beyond its ends; in Python there is nothing to do."""
    del rows, place


def ask_whole(rows: Sequence[Any], place: int) -> None:
    """Ask for an item of which more is needed than memory gives at once."""
    del rows, place


def ask_for_keys(pool: BlockPool, keys: Sequence[int], first: int, stop: int, group: int) -> None:
    """Ask for what look-ups of the first of many keys need; :func:`ask_for_key` does the others."""
    for at in range(first, min(first + 2 * AHEAD, stop)):
        ask(pool.buckets, (keys[at] ^ group) & pool.bucket_mask)
    for at in range(first, min(first + AHEAD, stop)):
        ask(pool.blocks, pool.buckets[(keys[at] ^ group) & pool.bucket_mask])


def ask_for_key(pool: BlockPool, keys: Sequence[int], at: int, last: int, group: int) -> None:
    """Ask for what a look-up of a later key than that at a place needs: its bucket, its block."""
    key = keys[min(at + 2 * AHEAD, last)]
    ask(pool.buckets, (key ^ group) & pool.bucket_mask)
    key = keys[min(at + AHEAD, last)]
    ask(pool.blocks, pool.buckets[(key ^ group) & pool.bucket_mask])


def ask_for_entry(pool: BlockPool, table: BlockTable, place: int) -> None:
    """Ask for a block of a table."""
    if place >= 0:
        ask(pool.blocks, table.blocks[place])


def ask_for_victims(pool: BlockPool, number: int) -> None:
    """Ask for the blocks that give way first; :func:`ask_for_victim` does those behind them."""
    if pool.policy == LRU:
        line = pool.line
        for at in range(line.first, min(line.first + min(number, 2 * AHEAD), line.stop)):
            ask(pool.blocks, line.entries[at])


def ask_for_buckets(pool: BlockPool, number: int) -> None:
    """Ask for where the keys of the first of them stand."""
    if pool.policy == LRU:
        line = pool.line
        for at in range(line.first, min(line.first + min(number, AHEAD), line.stop)):
            ask_for_bucket(pool, line.entries[at])


def ask_for_victim(pool: BlockPool) -> None:
    """Ask for a block that gives way later, and for the bucket of one that comes before it."""
    if pool.policy != LRU:
        return
    at, line = pool.line.first + 2 * AHEAD, pool.line
    if at < line.stop:
        ask(pool.blocks, line.entries[at])
    at -= AHEAD
    if at < line.stop:
        ask_for_bucket(pool, line.entries[at])


def ask_for_bucket(pool: BlockPool, k: int) -> None:
    """Ask for where a block's key stands."""
    if k != NONE:
        block = pool.blocks[k]
        ask(pool.buckets, (block.key ^ block.group) & pool.bucket_mask)
