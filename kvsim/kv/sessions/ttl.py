"""A time for which the cached blocks of a session are protected between its turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv.eviction import EVICTION_POLICIES
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.own_rules.part import per_block, per_replica
from kvsim.records.queue import Neighbours, Queue
from kvsim.records.record import NONE
from kvsim.rules.links import append, remove
from kvsim.trace.turns import holds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvsim.trace.turns import Turns


@EVICTION_POLICIES.register("session-ttl")
class SessionTtl(EvictionRules):
    """Evicts the least recently freed first; for a time, blocks of open sessions are protected.

    This is a soft TTL (vllm-project/vllm#52113), by default of 30 s. It starts when a request frees
    a block, if a later request of its session follows. Protected blocks are evicted last, so they
    cause no refused allocation.
    """

    tracks_sessions = True

    ttl: float = 30.0  # seconds

    until: list[float] = per_block(0.0)  # time at which the protection ends
    number: list[int] = per_block()  # by the order of freeing
    is_late: list[int] = per_block()  # 1 while the block is in `late`
    links: list[Neighbours] = per_block(Neighbours)
    early: Queue = per_replica(Queue)
    late: Queue = per_replica(Queue)  # blocks that were protected when they were freed
    num_freed: int = per_replica()

    def cached(self, block_id: int, key: int) -> None:
        """End the protection of a block's old content."""
        self.until[block_id] = 0.0

    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference."""
        if self.goes_on > 0.0:
            self.until[block_id] = self.now + self.ttl
        self.num_freed += 1
        self.number[block_id] = self.num_freed
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
        block_id, late = self.early.head, self.late.head
        if block_id == NONE or (
            late != NONE
            and self.until[late] <= self.now
            and self.number[late] < self.number[block_id]
        ):
            block_id = late
        self.remove(block_id)
        return block_id


@EVICTION_POLICIES.register("session-program")
class SessionProgram(SessionTtl):
    """As ``session-ttl``, but protects only sessions with a mean pause of at most ``ttl`` so far.

    This is the rule of Continuum's released code (arXiv 2511.02230), where ``ttl`` is 2 s, with two
    differences. The mean is over the pauses of the session instead of a tool, as a trace does not
    name tools. And a request does not wait for memory if protected blocks can be evicted for it.
    """

    ttl: float = 2.0

    def kept(self, turns: Turns) -> NDArray[np.float64]:
        return holds(turns, self.ttl).astype(float)
