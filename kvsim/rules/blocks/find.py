"""The hash map from content to blocks: a look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool


def find(pool: BlockPool, key: int, group: int) -> int:
    """Return the block with the oldest copy of a content in a group, or NONE."""
    k = pool.buckets[(key ^ group) & pool.bucket_mask]
    while k != NONE and (pool.blocks[k].key != key or pool.blocks[k].group != group):
        k = pool.blocks[k].chain
    return k
