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


def ask_for_key(pool: BlockPool, keys: Sequence[int], at: int, last: int, group: int) -> None:
    """Ask for what a look-up of a later key than that at a place needs: its bucket, its block."""
    key = keys[min(at + AHEAD, last)]
    ask(pool.buckets, (key ^ group) & pool.bucket_mask)
    key = keys[min(at + AHEAD // 2, last)]
    ask(pool.blocks, pool.buckets[(key ^ group) & pool.bucket_mask])


def ask_for_entry(pool: BlockPool, table: BlockTable, place: int) -> None:
    """Ask for a block of a table."""
    if place >= 0:
        ask(pool.blocks, table.blocks[place])


def ask_for_victim(pool: BlockPool, ahead: int) -> None:
    """Ask for a block that gives way after so many others, and the bucket of one half as late."""
    if pool.policy != LRU:
        return
    at, line = pool.line.first + ahead, pool.line
    if at < line.stop:
        ask(pool.blocks, line.entries[at])
    at -= ahead // 2
    if at < line.stop and line.entries[at] != NONE:
        block = pool.blocks[line.entries[at]]
        ask(pool.buckets, (block.key ^ block.group) & pool.bucket_mask)
