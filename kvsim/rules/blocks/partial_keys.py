"""Keys of the first tokens of a block, for hits that end inside it, and the copies for such hits.

A block with a key may get a second, shorter key. A *hash alias* stores it: a further record that
the hash map finds like a block's record. It holds the index of its block.

docs/vllm-rules.md, section 13, describes the rules in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.blocks.pool import allocate_block, cache, drop_hash_aliases, forget, link, move_key

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool, BlockTable, KVGroup, RequestBlocks


def owner_of(pool: BlockPool, k: int) -> int:
    """Return the block of a record found in the hash map: a block's own record, or a hash alias."""
    return pool.hash_alias_owners[k - pool.num_usable - 1] if k > pool.num_usable else k


def add_hash_alias(pool: BlockPool, owner: int, key: int) -> bool:
    """Add a further key to a block; False if the block has an alias with that key already."""
    k = pool.first_hash_aliases[owner]
    while k != NONE:
        if pool.blocks[k].key == key:
            return False
        k = pool.places[k].next
    k = pool.free_hash_alias
    card = pool.blocks[k]
    pool.free_hash_alias = pool.places[k].next
    pool.places[k].next = pool.first_hash_aliases[owner]
    pool.first_hash_aliases[owner] = k
    pool.hash_alias_owners[k - pool.num_usable - 1] = owner
    card.key = key
    card.group = pool.blocks[owner].group
    link(pool, k)
    return True


def num_units(kv: KV, own_blocks: RequestBlocks, block: int, first: int, stop: int) -> int:
    """Return the number of leading hash units of a request that a block's key covers.

    The key is searched in the units from ``first`` to ``stop``; 0 if none of them has it.
    """
    for unit in range(first, stop):
        if own_blocks.keys[unit] == kv.pool.blocks[block].key:
            return unit + 1
    return 0


def name_part(kv: KV, own_blocks: RequestBlocks, block: int, units: int, first: int) -> bool:
    """Set the key of a block from hash unit ``first`` up to hash unit ``units``.

    The key replaces a shorter key of the block; if there is a longer one, it becomes a hash alias.
    Return False if the block has the key already.
    """
    pool, key = kv.pool, own_blocks.keys[units - 1]
    if not pool.blocks[block].hashed:
        cache(pool, block, key)
    elif num_units(kv, own_blocks, block, first, units - 1) > 0:
        drop_hash_aliases(pool, block)
        forget(pool, block)
        cache(pool, block, key)
    else:
        return pool.blocks[block].key != key and add_hash_alias(pool, block, key)
    return True


def hold_pair(kv: KV, group: KVGroup, source: int) -> int:
    """Allocate the target of a block's copy; both blocks stay referenced until the step ends."""
    states, copy = kv.states, allocate_block(kv.pool, group)
    group.num_used += 1
    states.copies.blocks[2 * states.num_copies] = copy
    states.copies.blocks[2 * states.num_copies + 1] = source
    states.copy_groups[states.num_copies] = group.index
    states.num_copies += 1
    states.num_held += 1
    return copy


def copy_hit(kv: KV, group: KVGroup, table: BlockTable) -> None:
    """Copy the last block of a hit that ends inside it; the request continues in the copy."""
    source = table.blocks[table.length - 1]  # the hit's reference holds it until the step ends
    copy = hold_pair(kv, group, source)
    kv.pool.blocks[copy].ref_cnt += 1
    table.blocks[table.length - 1] = copy


def copy_own(kv: KV, group: KVGroup, source: int) -> None:
    """Copy a state that ends inside a block: its request keeps the block, hits find the copy."""
    copy = hold_pair(kv, group, source)
    kv.pool.blocks[source].ref_cnt += 1
    move_key(kv.pool, source, copy)
    kv.states.named_in[copy] = kv.states.step
