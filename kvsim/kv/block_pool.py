"""The block pool: fixed-size blocks with reference counts, a free queue and a hash map.

The rules are vLLM 0.33's. Block 0 is the null block, a placeholder that is never handed out. Free
blocks queue up in two parts: those without content in front, last freed first out; behind them
those whose content may be hit again, in the order of the eviction policy. A block keeps its content
until it is handed out (lazy eviction), and a block in a table never changes its id: block tables
are append-only. The price is that one content may sit in several blocks.
"""

from __future__ import annotations

from collections import deque
from itertools import chain
from typing import TYPE_CHECKING

from kvsim.kv.eviction import LRU

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvsim.kv.eviction import EvictionPolicy

NULL_BLOCK = 0


class BlockPool:
    """Owns every block's identity.

    Parameters
    ----------
    num_gpu_blocks : blocks, the null block included (vLLM's logged number)
    num_groups : KV-cache groups that share the pool
    eviction : order of cached free blocks
    """

    def __init__(
        self, num_gpu_blocks: int, num_groups: int = 1, eviction: EvictionPolicy | None = None
    ) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.ref_cnt = [0] * num_gpu_blocks
        self.group_of = [0] * num_gpu_blocks  # meaningful while a block is in use or cached
        self.num_used = [0] * num_groups  # blocks with a reference, per group
        self._hash_of: dict[int, int] = {}  # block -> its key, while it has one
        self._blocks_of: list[dict[int, dict[int, None]]] = [{} for _ in range(num_groups)]
        self._unhashed = deque(range(1, num_gpu_blocks))
        self._cached: EvictionPolicy = LRU() if eviction is None else eviction
        #: Told the key of a content that has just lost its last block.
        self.on_evict: Callable[[int], None] | None = None

    # -- reading --------------------------------------------------------------------------

    @property
    def num_usable(self) -> int:
        """Blocks that can ever be handed out."""
        return max(self.num_gpu_blocks - 1, 0)

    @property
    def num_free(self) -> int:
        """Blocks without a reference, cached ones included."""
        return len(self._unhashed) + len(self._cached)

    @property
    def num_cached_free(self) -> int:
        """Free blocks whose content can still be hit."""
        return len(self._cached)

    def free_queue(self) -> Iterator[int]:
        """Free blocks, next one out first."""
        return chain(self._unhashed, self._cached)

    def hashed_blocks(self) -> Iterable[int]:
        """Blocks that carry a key, in use or free."""
        return self._hash_of.keys()

    def lookup(self, key: int, group: int) -> int | None:
        """Return the block that has held a content longest, or None. Does not mutate."""
        blocks = self._blocks_of[group].get(key)
        return next(iter(blocks)) if blocks else None

    # -- changing -------------------------------------------------------------------------

    def get(self, num_blocks: int, group: int = 0) -> list[int]:
        """Hand out free blocks from the front of the queue; the caller has checked ``num_free``.

        A block that still carried content loses it now.
        """
        unhashed, taken = self._unhashed, []
        for _ in range(num_blocks):
            if unhashed:
                block = unhashed.popleft()
            else:
                block = self._cached.evict()
                self._forget(block)
            self.ref_cnt[block] = 1
            self.group_of[block] = group
            taken.append(block)
        self.num_used[group] += num_blocks
        return taken

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to blocks found by a prefix hit; free ones leave the queue."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self._cached.hit(block)
            if self.ref_cnt[block] == 0:
                self._cached.remove(block)
                self.num_used[self.group_of[block]] += 1
            self.ref_cnt[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block, in the given order; null blocks are passed over.

        Of those nobody references any more, the ones without content go to the front of the queue
        (in the given order), the others to the policy.
        """
        unhashed = []
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self.ref_cnt[block] -= 1
            if self.ref_cnt[block]:
                continue
            self.num_used[self.group_of[block]] -= 1
            if block in self._hash_of:
                self._cached.insert(block)
            else:
                unhashed.append(block)
        self._unhashed.extendleft(reversed(unhashed))

    def cache(self, block: int, key: int) -> None:
        """Give a full block its key, so that later lookups find it."""
        self._hash_of[block] = key
        self._blocks_of[self.group_of[block]].setdefault(key, {})[block] = None
        self._cached.cached(block, key)

    @property
    def eviction(self) -> EvictionPolicy:
        """The order of cached free blocks."""
        return self._cached

    def _forget(self, block: int) -> None:
        key = self._hash_of.pop(block)
        siblings = self._blocks_of[self.group_of[block]]
        del siblings[key][block]
        if not siblings[key]:
            del siblings[key]
            if self.on_evict is not None:
                self.on_evict(key)

    # -- checking -------------------------------------------------------------------------

    def check_integrity(
        self, tables: Iterable[tuple[int, Sequence[int]]], *, forked: bool = False
    ) -> None:
        """Compare with every block table there is, as (group, blocks); invariants 2, 3 and 4.

        Only a hit shares a block, unless tables are ``forked``.

        Raises
        ------
        RuntimeError
            Naming the block and both sides of the broken equation.
        """
        held = [0] * self.num_gpu_blocks
        for group, table in tables:
            seen = set()
            for block in table:
                if block == NULL_BLOCK:
                    continue
                if block in seen:
                    raise RuntimeError(f"invariant 4: block {block} is twice in one table")
                if self.group_of[block] != group:
                    raise RuntimeError(f"invariant 4: block {block} is in a table of group {group}")
                seen.add(block)
                held[block] += 1
        for block, count in enumerate(held):
            if count != self.ref_cnt[block]:
                raise RuntimeError(
                    f"invariant 3: block {block} has ref_cnt {self.ref_cnt[block]} "
                    f"but is in {count} tables"
                )
            if count > 1 and block not in self._hash_of and not forked:
                raise RuntimeError(f"invariant 4: block {block} is shared but has no key")
        free = list(self.free_queue())
        used = sum(count > 0 for count in held)
        if len(set(free)) != len(free) or any(self.ref_cnt[b] for b in free):
            raise RuntimeError("invariant 2: a block is in the free queue twice, or while in use")
        if used + len(free) != self.num_usable or used != sum(self.num_used):
            raise RuntimeError(
                f"invariant 2: {used} in use ({sum(self.num_used)} counted) + {len(free)} free "
                f"is not {self.num_usable}"
            )
        cached = set(self._cached)
        if any((block in self._hash_of) != (block in cached) for block in free):
            raise RuntimeError("a free block is in the wrong part of the free queue")
