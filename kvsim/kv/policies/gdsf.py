"""GDSF: LFU with ageing; the worth of the last victim is added to a block's number of uses."""

from __future__ import annotations

from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.own_rules.part import per_block, per_replica
from kvsim.rules.eviction.lfu import ORDER_BITS
from kvsim.rules.eviction.shares import worth_of
from kvsim.rules.eviction.timed import drop_timed, push_timed


@EVICTION_POLICIES.register("gdsf")
class GDSF(EvictionRules):
    """Evicts the block with the fewest uses, corrected for age; among equals, the first one freed.

    At each use, a block's worth becomes its number of uses plus the worth of the last victim; the
    smallest worth is evicted. All blocks have one size and cost, so Greedy-Dual-Size-Frequency
    ranks them by frequency and age (Cherkasova, Improving WWW proxies performance with
    Greedy-Dual-Size-Frequency caching policy, HP Labs 1998).
    """

    uses: list[int] = per_block()
    worth: list[int] = per_block()  # worth at the last use
    rank: list[int] = per_block()  # by worth, then by the order of freeing
    by_rank: list[int] = per_block()
    place: list[int] = per_block()
    num_ranked: int = per_replica()
    num_freed: int = per_replica()
    age: int = per_replica()  # worth of the last victim

    def cached(self, block_id: int, key: int) -> None:
        """Count the first use of new content."""
        self.uses[block_id] = 1
        self.worth[block_id] = worth_of(self.age, 1)

    def hit(self, block_id: int) -> None:
        """Count a use; the block's rank changes only when the block is freed again."""
        self.uses[block_id] += 1
        self.worth[block_id] = worth_of(self.age, self.uses[block_id])

    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference."""
        self.num_freed += 1
        self.rank[block_id] = (self.worth[block_id] << ORDER_BITS) + self.num_freed
        push_timed(self.by_rank, self.place, self.rank, self.num_ranked, block_id)
        self.num_ranked += 1

    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again."""
        drop_timed(self.by_rank, self.place, self.rank, self.num_ranked, block_id)
        self.num_ranked -= 1

    def evict(self) -> int:
        """Remove and return the next victim."""
        block_id = self.by_rank[0]
        self.remove(block_id)
        self.age = self.rank[block_id] >> ORDER_BITS
        return block_id
