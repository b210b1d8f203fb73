"""Pinned blocks: a bounded share of the pool that is evicted last."""

from __future__ import annotations

from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.own_rules.part import per_block, per_replica
from kvsim.records.queue import Neighbours, Queue
from kvsim.records.record import NONE
from kvsim.rules.links import append, remove

#: The retention priority at which a request's blocks are pinned.
PINNED = 100


@EVICTION_POLICIES.register("session-pin")
class SessionPin(EvictionRules):
    """Evicts the least recently freed first; blocks of requests with ``hint_priority`` 100 last.

    At most ``share`` of the pool's blocks are pinned, as in vLLM's proposal
    (vllm-project/vllm#27046, not merged); further blocks of such requests are not. In the proposal,
    pinned blocks leave the free queue; here they are evicted last, so that no request waits.
    """

    tracks_sessions = True

    share: float = 0.2

    is_pinned: list[int] = per_block()
    links: list[Neighbours] = per_block(Neighbours)
    early: Queue = per_replica(Queue)
    late: Queue = per_replica(Queue)
    num_pinned: int = per_replica()  # pinned blocks, in use or free
    num_blocks: int = per_replica()

    def cached(self, block_id: int, key: int) -> None:
        """Unpin a block that has new content."""
        self.num_pinned -= self.is_pinned[block_id]
        self.is_pinned[block_id] = 0

    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference; pin it if its request asks to."""
        has_room = self.num_pinned + 1 <= self.share * self.num_blocks
        if self.is_pinned[block_id] == 0 and self.hint >= PINNED and has_room:
            self.is_pinned[block_id] = 1
            self.num_pinned += 1
        if self.is_pinned[block_id] == 1:
            append(self.late, self.links, block_id)
        else:
            append(self.early, self.links, block_id)

    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again."""
        if self.is_pinned[block_id] == 1:
            remove(self.late, self.links, block_id)
        else:
            remove(self.early, self.links, block_id)

    def evict(self) -> int:
        """Remove and return the next victim."""
        block_id = self.early.head
        if block_id == NONE:
            block_id = self.late.head
        self.remove(block_id)
        return block_id
