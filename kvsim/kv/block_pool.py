"""The block pool: fixed-size blocks with reference counts, a free queue and a hash map.

The class calls the rules in ``rules/blocks/pool.py``. The free queue has two parts (D3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.kv.eviction import LRU, evictable, init_policy, victims
from kvsim.records.eviction import SIEVE
from kvsim.records.kv import KV
from kvsim.records.memory import Objects, array_of, column, head
from kvsim.records.paged import NULL_BLOCK, Block, BlockTable, KVGroup
from kvsim.records.paged import BlockPool as Pool
from kvsim.records.queue import Neighbours
from kvsim.records.record import NONE
from kvsim.rules.blocks import pool as rules
from kvsim.rules.blocks.find import find

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from kvsim.kv.eviction import EvictionPolicy
    from kvsim.records.memory import Memory

__all__ = ["NULL_BLOCK", "BlockPool", "init_pool"]

#: A block stores its group in a signed integer of 8 bits.
MOST_GROUPS = 127


def init_pool(
    pool: Pool,
    memory: Memory,
    num_gpu_blocks: int,
    num_groups: int,
    eviction: EvictionPolicy,
    num_hash_aliases: int = 0,
) -> None:
    """Fill an empty record with free blocks and the null block.

    ``num_hash_aliases`` records for further keys of blocks follow the blocks.
    """
    if num_groups > MOST_GROUPS:
        raise ValueError(f"model: {num_groups} groups of layers: at most {MOST_GROUPS}")
    blocks = max(num_gpu_blocks, 1)
    buckets = 1 << (8 * blocks * num_groups - 1).bit_length()
    pool.num_usable = pool.num_unhashed = blocks - 1
    pool.blocks = memory.records(Block, blocks + num_hash_aliases)
    if num_hash_aliases > 0 or eviction.rules_of == SIEVE:
        pool.places = memory.records(Neighbours, blocks + num_hash_aliases)
    if num_hash_aliases > 0:
        pool.num_hash_aliases, pool.free_hash_alias = num_hash_aliases, blocks
        for card in range(blocks, blocks + num_hash_aliases - 1):
            pool.places[card].next = card + 1
        pool.first_hash_aliases = memory.ints(blocks, NONE)
        pool.hash_alias_owners = memory.ints(num_hash_aliases)
    pool.unhashed = memory.list_of(range(blocks - 1, 0, -1) if blocks > 1 else [0])
    pool.buckets, pool.bucket_mask = memory.shorts(buckets, NONE), buckets - 1
    pool.num_seen, pool.fewest_dead = memory.ints(blocks), memory.ints(blocks)
    init_policy(eviction, pool, memory)


class BlockPool:
    """A pool of blocks that KV-cache groups share.

    Parameters
    ----------
    num_gpu_blocks : blocks, the null block included (the number that vLLM logs)
    num_groups : KV-cache groups that share the pool
    eviction : eviction policy of cached free blocks, by default LRU
    """

    def __init__(
        self, num_gpu_blocks: int, num_groups: int = 1, eviction: EvictionPolicy | None = None
    ) -> None:
        self.kv = KV(num_groups=num_groups)
        self.kv.groups = [KVGroup(index=g) for g in range(num_groups)]
        policy = LRU() if eviction is None else eviction
        init_pool(self.kv.pool, Objects(), num_gpu_blocks, num_groups, policy)

    @classmethod
    def over(cls, kv: Any) -> BlockPool:
        """Return a view of the pool of a KV cache."""
        pool = cls.__new__(cls)
        pool.kv = kv
        return pool

    # -- reading --------------------------------------------------------------------------

    @property
    def num_usable(self) -> int:
        """Blocks that can be allocated."""
        return self.kv.pool.num_usable

    @property
    def num_free(self) -> int:
        """Blocks without a reference, cached ones included."""
        return self.kv.pool.num_free

    @property
    def num_used(self) -> list[int]:
        """Blocks with a reference, per group."""
        return [self.kv.groups[g].num_used for g in range(self.kv.num_groups)]

    @property
    def ref_cnt(self) -> list[int]:
        """The number of references of each block."""
        return column(self.kv.pool.blocks, "ref_cnt")

    def free_queue(self) -> Iterator[int]:
        """Yield the free blocks in the order of allocation."""
        pool = self.kv.pool
        yield from reversed(head(pool.unhashed, pool.num_unhashed))
        yield from victims(pool)

    def hashed_blocks(self) -> list[int]:
        """Return the blocks with a key, in use or free."""
        found: list[int] = np.flatnonzero(array_of(self.kv.pool.blocks, "hashed")).tolist()
        return found

    def lookup(self, key: int, group: int) -> int | None:
        """Return the block with the oldest copy of a content, or None. Does not mutate."""
        found = find(self.kv.pool, key, group)
        return None if found == NONE else found

    # -- changing -------------------------------------------------------------------------

    def get(self, num_blocks: int, group: int = 0) -> list[int]:
        """Allocate free blocks from the front of the queue; the caller has checked ``num_free``."""
        table = BlockTable()
        table.blocks = [0] * num_blocks
        rules.append_blocks(self.kv.pool, self.kv.groups[group], table, num_blocks)
        return table.blocks

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks found by a prefix hit; free ones leave the free queue."""
        for k in blocks:
            if k != NULL_BLOCK:
                rules.touch(self.kv.pool, self._group_of(k), k)

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference of each block in the given order; null blocks are skipped."""
        held = [k for k in blocks if k != NULL_BLOCK]
        if held:
            table = BlockTable(blocks=held[::-1], length=len(held))
            rules.free_blocks(self.kv.pool, self._group_of(held[0]), table, 0, len(held))

    def cache(self, block: int, key: int) -> None:
        """Set the key of a full block, so that later lookups find it."""
        rules.cache(self.kv.pool, block, key)

    def _group_of(self, block: int) -> KVGroup:
        return self.kv.groups[self.kv.pool.blocks[block].group]

    # -- checking -------------------------------------------------------------------------

    def check_integrity(
        self,
        tables: Iterable[tuple[int, Sequence[int]]],
        *,
        forked: bool = False,
        copies: Sequence[tuple[int, Sequence[int]]] = (),
    ) -> None:
        """Check invariants 2, 3 and 4: compare the pool with all block tables.

        Parameters
        ----------
        tables : all block tables, as (group, blocks)
        forked : sequences of a request may share blocks without a key
        copies : the ``tables`` of pending copies, which may share blocks without a key, too

        Raises
        ------
        RuntimeError
            If an invariant does not hold; names the blocks or counts that differ.
        """
        pool = self.kv.pool
        num_blocks = pool.num_usable + 1  # the records after them are hash aliases
        ref_cnt, hashed, group_of = (
            array_of(pool.blocks, name)[:num_blocks] for name in ("ref_cnt", "hashed", "group")
        )
        held = _count_references(tables, group_of)
        for k in np.flatnonzero(held != ref_cnt).tolist():
            raise RuntimeError(
                f"invariant 3: block {k} has ref_cnt {ref_cnt[k]} but is in {held[k]} tables"
            )
        if not forked:
            _check_shared(ref_cnt, hashed, copies)
        windows = [g for g in range(self.kv.num_groups) if self.kv.groups[g].window > 0]
        num_shared = int(((held > 1) & np.isin(group_of, windows)).sum())
        if num_shared != pool.num_shared:
            raise RuntimeError(f"{pool.num_shared} shared blocks counted, {num_shared} found")
        self._check_free_queue(ref_cnt, hashed)
        if pool.num_hash_aliases > 0:
            self._check_hash_aliases(hashed)

    def _check_free_queue(self, ref_cnt: NDArray[Any], hashed: NDArray[Any]) -> None:
        pool = self.kv.pool
        cached = np.array(evictable(pool), np.int64)
        free = np.concatenate([head(pool.unhashed, pool.num_unhashed), cached]).astype(np.int64)
        is_free = np.zeros(len(ref_cnt), bool)
        is_free[free] = True
        if np.count_nonzero(is_free) != len(free) or ref_cnt[free].any():
            raise RuntimeError("invariant 2: a block is in the free queue twice, or while in use")
        used = int((ref_cnt > 0).sum())
        if used + len(free) != self.num_usable or used != sum(self.num_used):
            raise RuntimeError(
                f"invariant 2: {used} in use ({sum(self.num_used)} counted) + {len(free)} free "
                f"is not {self.num_usable}"
            )
        if not hashed[cached].all() or int(hashed[free].sum()) != len(cached):
            raise RuntimeError("a free block is in the wrong part of the free queue")

    def _check_hash_aliases(self, hashed: NDArray[Any]) -> None:
        """Check that every hash alias is free or belongs to a block with a key."""
        pool, found = self.kv.pool, 0
        for owner in range(pool.num_usable + 1):
            k = pool.first_hash_aliases[owner]
            while k != NONE:
                found += 1
                if not hashed[owner] or pool.hash_alias_owners[k - pool.num_usable - 1] != owner:
                    raise RuntimeError(
                        f"block {owner} has hash aliases without a key, or those of another block"
                    )
                k = pool.places[k].next
        k = pool.free_hash_alias
        while k != NONE:
            found += 1
            k = pool.places[k].next
        if found != pool.num_hash_aliases:
            raise RuntimeError(f"{pool.num_hash_aliases} hash aliases, {found} found")


def _count_references(
    tables: Iterable[tuple[int, Sequence[int]]], group_of: NDArray[Any]
) -> NDArray[Any]:
    """Return the number of tables that hold each block."""
    held = np.zeros(len(group_of), np.int64)
    for group, table in tables:
        seen = set()
        for k in table:
            if k == NULL_BLOCK:
                continue
            if k in seen:
                raise RuntimeError(f"invariant 4: block {k} is twice in one table")
            seen.add(k)
            if group_of[k] != group:
                raise RuntimeError(f"invariant 4: block {k} is in a table of group {group}")
            held[k] += 1
    return held


def _check_shared(
    ref_cnt: NDArray[Any], hashed: NDArray[Any], copies: Sequence[tuple[int, Sequence[int]]]
) -> None:
    """Check that shared blocks have keys; references of pending ``copies`` do not count."""
    shared = ref_cnt.copy()
    for _, (k,) in copies:
        shared[k] -= 1
    for k in np.flatnonzero((shared > 1) & (hashed == 0)).tolist():
        raise RuntimeError(f"invariant 4: block {k} is shared but has no key")
