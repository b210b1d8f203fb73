"""An eviction policy: blocks that a prompt has hit stay cached for a while.

Run it: kvsim run --allocator paged+eviction=docs/examples/parts/ttl_lru.py:TtlLru:ttl=30
"""

from kvsim.plugins.eviction import (
    NONE,
    EvictionRules,
    Links,
    Queue,
    append,
    per_block,
    per_replica,
    remove,
)


class TtlLru(EvictionRules):
    """Least recently freed first; blocks hit within ``ttl`` seconds go after all others."""

    ttl: float = 30.0  # seconds

    until: list[float] = per_block(0.0)  # time at which the last hit on a block expires
    is_late: list[int] = per_block()  # 1 while the block is in `late`
    links: list[Links] = per_block(Links)
    early: Queue = per_replica(Queue)  # the next victim is its head
    late: Queue = per_replica(Queue)

    def cached(self, block_id: int, key: int) -> None:
        """Forget the hits on a block's old content."""
        self.until[block_id] = 0.0

    def hit(self, block_id: int) -> None:
        """Record a prefix hit on a block, free or in use."""
        self.until[block_id] = self.now + self.ttl

    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference."""
        if self.until[block_id] > self.now:
            self.is_late[block_id] = 1
            append(self.late, self.links, block_id)
        else:
            self.is_late[block_id] = 0
            append(self.early, self.links, block_id)

    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again."""
        if self.is_late[block_id] == 1:
            remove(self.late, self.links, block_id)
        else:
            remove(self.early, self.links, block_id)

    def evict(self) -> int:
        """Remove and return the next victim."""
        block_id = self.early.head
        if block_id == NONE or self.has_expired(self.late.head):
            block_id = self.late.head
        self.remove(block_id)
        return block_id

    def has_expired(self, block_id: int) -> bool:
        """Return True if the time of a block is over; NONE has none."""
        return block_id != NONE and self.until[block_id] <= self.now
