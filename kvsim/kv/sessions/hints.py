"""Retention priorities with durations, which an application sets for a request's blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.own_rules.part import per_block, per_replica
from kvsim.rules.eviction.timed import drop_timed, push_timed, settle

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvsim.trace.turns import Turns

#: Distance of the ranks of two priorities; more than the number of times that blocks are freed.
PER_LEVEL = 1 << 48


@EVICTION_POLICIES.register("session-hints")
class SessionHints(EvictionRules):
    """Evicts the lowest priority first, then the least recently freed; priorities expire.

    Priorities are TensorRT-LLM's (docs/source/features/kvcache.md): 0 to 100, and 35 for a block
    without a priority or after its time. When a request frees its blocks, they get its
    ``hint_priority`` for ``hint_ttl`` seconds. A ``hint_ttl`` without a ``hint_priority`` means
    priority 36, as in vLLM's soft TTL (vllm-project/vllm#52113). A block that another request gave
    a higher priority keeps that priority until it expires. All blocks of a prompt have the same
    priority.
    """

    tracks_sessions = True

    default: int = 35

    level: list[int] = per_block(-1)
    until: list[float] = per_block(0.0)  # time at which the level expires
    rank: list[int] = per_block()  # by level, then by the order of freeing
    number: list[int] = per_block()
    by_rank: list[int] = per_block()
    place: list[int] = per_block()
    is_timed: list[int] = per_block()  # 1 while the block is in `by_time`
    by_time: list[int] = per_block()
    time_place: list[int] = per_block()
    num_ranked: int = per_replica()
    num_timed: int = per_replica()
    num_freed: int = per_replica()

    def kept(self, turns: Turns) -> NDArray[np.float64]:
        return turns.hint_ttl

    def cached(self, block_id: int, key: int) -> None:
        """Forget the priority of a block's old content."""
        self.level[block_id] = -1

    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference."""
        level, until = int(self.hint), math.inf
        if self.goes_on >= 0.0:
            until = self.now + self.goes_on
        if level < 0:
            level = self.default + 1 if self.goes_on >= 0.0 else self.default
        is_live = self.level[block_id] >= 0 and self.until[block_id] > self.now
        if not (is_live and self.level[block_id] > level):
            self.level[block_id], self.until[block_id] = level, until
        self.num_freed += 1
        self.number[block_id] = self.num_freed
        self.rank[block_id] = self.level[block_id] * PER_LEVEL + self.num_freed
        push_timed(self.by_rank, self.place, self.rank, self.num_ranked, block_id)
        self.num_ranked += 1
        if self.until[block_id] < math.inf:
            push_timed(self.by_time, self.time_place, self.until, self.num_timed, block_id)
            self.num_timed += 1
            self.is_timed[block_id] = 1

    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again."""
        drop_timed(self.by_rank, self.place, self.rank, self.num_ranked, block_id)
        self.num_ranked -= 1
        if self.is_timed[block_id] == 1:
            self.untime(block_id)

    def untime(self, block_id: int) -> None:
        drop_timed(self.by_time, self.time_place, self.until, self.num_timed, block_id)
        self.num_timed -= 1
        self.is_timed[block_id] = 0

    def evict(self) -> int:
        """Remove and return the next victim."""
        while self.num_timed > 0 and self.until[self.by_time[0]] <= self.now:
            block_id = self.by_time[0]
            self.untime(block_id)
            self.level[block_id] = -1
            self.rank[block_id] = self.default * PER_LEVEL + self.number[block_id]
            settle(self.by_rank, self.place, self.rank, self.num_ranked, self.place[block_id])
        block_id = self.by_rank[0]
        self.remove(block_id)
        return block_id
