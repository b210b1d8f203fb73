"""Segmented LRU: a block used once cannot evict one that was used again."""

from __future__ import annotations

from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.own_rules.part import per_block, per_replica
from kvsim.records.queue import Neighbours, Queue
from kvsim.records.record import NONE
from kvsim.rules.eviction.shares import most_protected
from kvsim.rules.links import append, remove


@EVICTION_POLICIES.register("slru")
class SLRU(EvictionRules):
    """Evicts blocks without a prefix hit before the others, each in the order of freeing.

    New content is on probation; its first hit protects it. At most four fifths of the pool are
    protected: if there are more, the protected block that was freed first moves to the end of
    probation (Karedla, Love and Wherry, Caching strategies to improve disk system performance,
    IEEE Computer 1994).
    """

    is_protected: list[int] = per_block()
    is_free: list[int] = per_block()
    links: list[Neighbours] = per_block(Neighbours)
    probation: Queue = per_replica(Queue)
    protected: Queue = per_replica(Queue)
    num_protected: int = per_replica()  # protected blocks, in use or free
    num_content: int = per_replica()
    num_blocks: int = per_replica()

    def cached(self, block_id: int, key: int) -> None:
        """Put new content on probation."""
        self.is_protected[block_id] = 0
        self.num_content += 1

    def hit(self, block_id: int) -> None:
        """Protect a block."""
        if self.is_protected[block_id] == 0:
            self.put(block_id, 1)
            self.limit()

    def put(self, block_id: int, target: int) -> None:
        """Move a block, in use or free, to a segment: 1 protected, 0 probation."""
        is_free = self.is_free[block_id]
        if is_free == 1:
            self.remove(block_id)
        self.num_protected += target - self.is_protected[block_id]
        self.is_protected[block_id] = target
        if is_free == 1:
            self.link(block_id)

    def limit(self) -> None:
        """Move the oldest free protected blocks to probation while too many are protected."""
        size = self.num_blocks - 1 if self.num_blocks > 0 else self.num_content
        while self.num_protected > most_protected(size) and self.protected.head != NONE:
            self.put(self.protected.head, 0)

    def link(self, block_id: int) -> None:
        self.is_free[block_id] = 1
        if self.is_protected[block_id] == 1:
            append(self.protected, self.links, block_id)
        else:
            append(self.probation, self.links, block_id)

    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference."""
        self.link(block_id)
        self.limit()

    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again."""
        self.is_free[block_id] = 0
        if self.is_protected[block_id] == 1:
            remove(self.protected, self.links, block_id)
        else:
            remove(self.probation, self.links, block_id)

    def evict(self) -> int:
        """Remove and return the next victim."""
        block_id = self.probation.head
        if block_id == NONE:
            block_id = self.protected.head
        self.remove(block_id)
        self.num_protected -= self.is_protected[block_id]
        self.is_protected[block_id] = 0
        self.num_content -= 1
        return block_id
