"""Keys for parts of blocks, where hits may end inside one, and the copies such hits take.

A block that has a key may get a shorter one beside it, on a card. A card is a record behind those
of the blocks that the hash map finds like a block; it names its owner.

docs/vllm-rules.md tells the rules in words, section 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.blocks.pool import cache, drop_hash_aliases, forget, link, move_key, take_block

if TYPE_CHECKING:
    from kvsim.records.kv import KV
    from kvsim.records.paged import BlockPool, BlockTable, KVGroup, RequestBlocks


def owner_of(pool: BlockPool, k: int) -> int:
    """Return the block behind what the hash map has found: itself, or a card's owner."""
    return pool.hash_alias_owners[k - pool.num_usable - 1] if k > pool.num_usable else k


def add_hash_alias(pool: BlockPool, owner: int, key: int) -> bool:
    """Give a block one more key; False if it has it."""
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
    """Hash units that a block's key covers, found among a request's keys; 0 if it is none."""
    for unit in range(first, stop):
        if own_blocks.keys[unit] == kv.pool.blocks[block].key:
            return unit + 1
    return 0


def name_part(kv: KV, own_blocks: RequestBlocks, block: int, units: int, first: int) -> bool:
    """Name a part of a block, which begins at the ``first`` hash unit, up to a later one.

    A longer key replaces a shorter one, and stays beside it. False if the block has the key.
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
    """Take a block to copy another one to; both are held until the end of the step."""
    states, copy = kv.states, take_block(kv.pool, group)
    group.num_used += 1
    states.copies.blocks[2 * states.num_copies] = copy
    states.copies.blocks[2 * states.num_copies + 1] = source
    states.copy_groups[states.num_copies] = group.index
    states.num_copies += 1
    states.num_held += 1
    return copy


def copy_hit(kv: KV, group: KVGroup, table: BlockTable) -> None:
    """Copy the last block of a hit that ends inside it: the request goes on in the copy."""
    source = table.blocks[table.length - 1]  # its hit holds it until the end of the step
    copy = hold_pair(kv, group, source)
    kv.pool.blocks[copy].ref_cnt += 1
    table.blocks[table.length - 1] = copy


def copy_own(kv: KV, group: KVGroup, source: int) -> None:
    """Copy a request's own state inside a block: it goes on in the block, the copy is found."""
    copy = hold_pair(kv, group, source)
    kv.pool.blocks[source].ref_cnt += 1
    move_key(kv.pool, source, copy)
    kv.states.named_in[copy] = kv.states.step
