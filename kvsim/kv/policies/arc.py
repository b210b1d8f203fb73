"""ARC: content used once and content used again share the pool; hits on ghosts adapt the shares."""

from __future__ import annotations

from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.own_rules.part import per_block, per_replica
from kvsim.records.queue import Neighbours, Queue
from kvsim.records.record import NONE
from kvsim.rules.eviction.shares import evicts_t1, target_after
from kvsim.rules.links import append, remove

#: Lists of blocks: content used once, and more often.
T1, T2 = 1, 2


@EVICTION_POLICIES.register("arc")
class ARC(EvictionRules):
    """Evicts content used once or content used again, by a target share that adapts.

    Content used once is in T1, other content in T2, each in the order of freeing; the keys of
    victims stay as ghosts in B1 and B2. Content with a ghost in B1 raises the target of T1, and
    content with a ghost in B2 lowers it; in both cases, it enters T2 (Megiddo and Modha, ARC: a
    self-tuning, low overhead replacement cache, FAST 2003, figure 4). If T1 has its target size,
    the paper's choice depends on the next key. A pool evicts before it knows that key, so it then
    evicts from T2.
    """

    held_in: list[int] = per_block()  # T1 or T2; -T1 for a free block of T1 that was hit
    key_of: list[int] = per_block()
    links: list[Neighbours] = per_block(Neighbours)
    t1: Queue = per_replica(Queue)  # free blocks of each list
    t2: Queue = per_replica(Queue)
    num_t1: int = per_replica()  # blocks of each list, in use or free
    num_t2: int = per_replica()
    target: int = per_replica()  # target of ``num_t1``
    b1: Queue = per_replica(Queue)  # ghosts, in ghost records: as many as blocks
    b2: Queue = per_replica(Queue)
    ghost_links: list[Neighbours] = per_block(Neighbours)
    ghost_key: list[int] = per_block()
    ghost_in: list[int] = per_block()  # list from which it was evicted: T1, T2, or 0 for none
    buckets: list[int] = per_block(NONE)  # by hash of a key: its first ghost
    follower: list[int] = per_block(NONE)  # next ghost of the bucket, or next unused record
    unused: int = per_replica(NONE)  # first unused ghost record
    num_rooms: int = per_replica()  # ghost records used so far
    num_blocks: int = per_replica()

    def size(self) -> int:
        return self.num_blocks - 1 if self.num_blocks > 0 else max(self.num_t1 + self.num_t2, 1)

    def bucket_of(self, key: int) -> int:
        return key % max(self.num_blocks, 1)

    def find(self, key: int) -> int:
        ghost = self.buckets[self.bucket_of(key)]
        while ghost != NONE and self.ghost_key[ghost] != key:
            ghost = self.follower[ghost]
        return ghost

    def forget(self, ghost: int) -> None:
        """Drop a ghost."""
        if self.ghost_in[ghost] == T1:
            remove(self.b1, self.ghost_links, ghost)
        else:
            remove(self.b2, self.ghost_links, ghost)
        bucket = self.bucket_of(self.ghost_key[ghost])
        at = self.buckets[bucket]
        if at == ghost:
            self.buckets[bucket] = self.follower[ghost]
        else:
            while self.follower[at] != ghost:
                at = self.follower[at]
            self.follower[at] = self.follower[ghost]
        self.follower[ghost], self.unused = self.unused, ghost

    def remember(self, key: int, source: int) -> None:
        """Add a ghost; it replaces one of the same key, or the oldest one if no record is free."""
        ghost = self.find(key)
        if ghost != NONE:
            self.forget(ghost)
        if self.unused == NONE and self.num_rooms == self.num_blocks > 0:
            self.forget(self.b2.head if self.b2.length > 0 else self.b1.head)
        ghost = self.unused
        if ghost == NONE:
            ghost = self.num_rooms
            self.num_rooms += 1
        else:
            self.unused = self.follower[ghost]
        bucket = self.bucket_of(key)
        self.ghost_key[ghost], self.ghost_in[ghost] = key, source
        self.follower[ghost], self.buckets[bucket] = self.buckets[bucket], ghost
        if source == T1:
            append(self.b1, self.ghost_links, ghost)
        else:
            append(self.b2, self.ghost_links, ghost)

    def limit(self) -> None:
        """Drop the oldest ghosts until the lists meet their limits.

        T1 and B1 together have at most as many entries as the pool has blocks, and all four lists
        have at most twice that number.
        """
        size, held = self.size(), self.num_t1 + self.num_t2
        while self.b1.length > 0 and self.num_t1 + self.b1.length > size:
            self.forget(self.b1.head)
        while self.b2.length > 0 and held + self.b1.length + self.b2.length > 2 * size:
            self.forget(self.b2.head)

    def cached(self, block_id: int, key: int) -> None:
        """Put new content in T1, or in T2 if it has a ghost."""
        ghost, target = self.find(key), T1
        if ghost != NONE:
            self.target = target_after(
                self.target, self.ghost_in[ghost] == T1, self.b1.length, self.b2.length, self.size()
            )
            self.forget(ghost)
            target = T2
        self.key_of[block_id] = key
        self.held_in[block_id] = target
        self.num_t1 += int(target == T1)
        self.num_t2 += int(target == T2)
        self.limit()

    def hit(self, block_id: int) -> None:
        """Move content to T2; a free block stays in its queue until it is removed."""
        if self.held_in[block_id] == T1:
            self.held_in[block_id] = -T1
            self.num_t1 -= 1
            self.num_t2 += 1

    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference."""
        if self.held_in[block_id] == T1:
            append(self.t1, self.links, block_id)
        else:
            self.held_in[block_id] = T2
            append(self.t2, self.links, block_id)

    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again."""
        if self.held_in[block_id] == T2:
            remove(self.t2, self.links, block_id)
        else:
            remove(self.t1, self.links, block_id)

    def evict(self) -> int:
        """Remove and return the next victim."""
        block_id = self.t2.head
        if block_id == NONE or (
            self.t1.head != NONE and evicts_t1(self.num_t1, self.target, False)
        ):
            block_id = self.t1.head
        self.remove(block_id)
        source = T1 if self.held_in[block_id] == T1 else T2
        self.num_t1 -= int(source == T1)
        self.num_t2 -= int(source == T2)
        self.remember(self.key_of[block_id], source)
        return block_id
