"""The block pool: reference counts, a free queue, and the content that can be hit.

The rules are vLLM 0.33's. Block 0 is the null block, a placeholder that is never allocated. Free
blocks without content are allocated first, the last freed one first; then cached blocks, in the
order of the eviction policy. A block keeps its content until it is allocated again (lazy eviction).
A block in a table never changes its id, as block tables are append-only. Therefore several blocks
may hold the same content.

docs/vllm-rules.md, section 5, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.rules.blocks.find import find
from kvsim.rules.blocks.host_tier import store
from kvsim.rules.blocks.shortage import count_heir
from kvsim.rules.events import record_removed
from kvsim.rules.eviction.policies import (
    evict,
    insert_victim,
    record_cached,
    record_hit,
    remove_victim,
)
from kvsim.rules.fetching import (
    AHEAD,
    prefetch_buckets,
    prefetch_entry,
    prefetch_victim,
    prefetch_victims,
)

if TYPE_CHECKING:
    from kvsim.records.paged import BlockPool, BlockTable, KVGroup


def cache(pool: BlockPool, k: int, key: int) -> None:
    """Set the key of a full block, so that later lookups find it."""
    block = pool.blocks[k]
    block.hashed = True
    block.key = key
    pool.num_hashed += 1
    record_cached(pool, k)
    link(pool, k)


def link(pool: BlockPool, k: int) -> None:
    """Add a block's key to the hash map, after older copies of its content."""
    block = pool.blocks[k]
    block.copy = NONE
    first = find(pool, block.key, block.group)
    if first == NONE:
        bucket = (block.key ^ block.group) & pool.bucket_mask
        block.chain = pool.buckets[bucket]
        pool.buckets[bucket] = k
        return
    while pool.blocks[first].copy != NONE:
        first = pool.blocks[first].copy
    pool.blocks[first].copy = k


def forget(pool: BlockPool, k: int) -> bool:
    """Remove a block's key; return True if no block with its content is left."""
    if pool.has_events:
        record_removed(pool, k)
    pool.blocks[k].hashed = False
    pool.num_hashed -= 1
    return unlink(pool, k)


def move_key(pool: BlockPool, k: int, to: int) -> None:
    """Move a block's key to another block of the same content; no content is added or removed."""
    key = pool.blocks[k].key
    pool.blocks[k].hashed = False
    pool.num_hashed -= 1
    unlink(pool, k)
    cache(pool, to, key)


def unlink(pool: BlockPool, k: int) -> bool:
    """Remove a key from the hash map; return True if no block with its content is left.

    If the oldest copy is removed, the next copy replaces it in the bucket.
    """
    block = pool.blocks[k]
    bucket = (block.key ^ block.group) & pool.bucket_mask
    first, before = pool.buckets[bucket], NONE
    while pool.blocks[first].key != block.key or pool.blocks[first].group != block.group:
        before, first = first, pool.blocks[first].chain
    if first != k:
        while pool.blocks[first].copy != k:
            first = pool.blocks[first].copy
        pool.blocks[first].copy = block.copy
        return False
    heir = block.chain
    if block.copy != NONE:
        heir = block.copy
        pool.blocks[heir].chain = block.chain
        count_heir(pool, heir)
    if before == NONE:
        pool.buckets[bucket] = heir
    else:
        pool.blocks[before].chain = heir
    return block.copy == NONE


def drop_hash_aliases(pool: BlockPool, owner: int) -> None:
    """Remove all hash aliases of a block; :mod:`kvsim.rules.blocks.partial_keys` adds them."""
    k = pool.first_hash_aliases[owner]
    while k != NONE:
        if pool.has_events:
            record_removed(pool, k)
        unlink(pool, k)
        following = pool.places[k].next
        pool.places[k].next = pool.free_hash_alias
        pool.free_hash_alias = k
        k = following
    pool.first_hash_aliases[owner] = NONE


def allocate_block(pool: BlockPool, group: KVGroup) -> int:
    """Allocate a free block without a hash; if there is none, evict a cached block."""
    if pool.num_unhashed > 0:
        pool.num_unhashed -= 1
        k = pool.unhashed[pool.num_unhashed]
    else:
        k = evict(pool)
        gone = forget(pool, k)
        if pool.num_hash_aliases > 0:
            drop_hash_aliases(pool, k)
        if gone and pool.has_host:
            store(pool.host, pool.blocks[k].key)
    pool.blocks[k].ref_cnt = 1
    pool.blocks[k].group = group.index
    return k


def append_blocks(pool: BlockPool, group: KVGroup, table: BlockTable, num_blocks: int) -> None:
    """Allocate blocks at the end of a table; the caller has checked that enough are free."""
    if num_blocks > 1:
        prefetch_victims(pool, num_blocks)
        prefetch_buckets(pool, num_blocks)
    for place in range(table.length, table.length + num_blocks):
        if num_blocks > 1:
            prefetch_victim(pool)
        table.blocks[place] = allocate_block(pool, group)
    table.length += num_blocks
    group.num_used += num_blocks
    group.num_table_blocks += num_blocks


def touch(pool: BlockPool, group: KVGroup, k: int) -> None:
    """Add a reference to a block found by a hit; remove it from the free queue if it was free."""
    block = pool.blocks[k]
    record_hit(pool, k)
    if block.ref_cnt == 0:
        remove_victim(pool, k)
        group.num_used += 1
    elif pool.tracks_pins and pool.pin_counts[k] == block.ref_cnt:
        group.num_pinned -= 1
    block.ref_cnt += 1
    if group.window > 0 and block.ref_cnt == 2:
        pool.num_shared += 1


def free_blocks(pool: BlockPool, group: KVGroup, table: BlockTable, first: int, stop: int) -> None:
    """Drop one reference of each table entry from ``first`` to ``stop``, skipping null blocks.

    References are dropped last to first. A block that loses its last reference goes to the eviction
    policy if it has content, else to the front of the free queue.
    """
    drop_references(pool, group, table, first, stop)
    queue_unhashed(pool, table, first, stop)


def drop_references(
    pool: BlockPool, group: KVGroup, table: BlockTable, first: int, stop: int
) -> None:
    """Drop one reference of each table entry, last to first; queue free blocks with content."""
    for place in range(stop - 1, max(stop - 1 - 2 * AHEAD, first - 1), -1):
        prefetch_entry(pool, table, place)
    for place in range(stop - 1, first - 1, -1):
        prefetch_entry(pool, table, place - 2 * AHEAD)
        k = table.blocks[place]
        if k == NULL_BLOCK:
            continue
        block = pool.blocks[k]
        block.ref_cnt -= 1
        if group.window > 0 and block.ref_cnt == 1:
            pool.num_shared -= 1
        if block.ref_cnt == 0:
            group.num_used -= 1
            if block.hashed:
                insert_victim(pool, k)
        elif pool.tracks_pins and pool.pin_counts[k] == block.ref_cnt:
            group.num_pinned += 1


def queue_unhashed(pool: BlockPool, table: BlockTable, first: int, stop: int) -> None:
    """Queue the free blocks of a table that have no content."""
    for place in range(first, stop):
        k = table.blocks[place]
        if k != NULL_BLOCK and pool.blocks[k].ref_cnt == 0 and not pool.blocks[k].hashed:
            pool.unhashed[pool.num_unhashed] = k
            pool.num_unhashed += 1
