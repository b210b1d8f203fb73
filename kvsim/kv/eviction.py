"""Eviction policies: the order in which cached, unreferenced blocks are evicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from kvsim.parametric import Parametric
from kvsim.records.contents import Content
from kvsim.records.eviction import PYTHON_POLICY, Eviction, Note, Ranking
from kvsim.records.eviction import Ranked as RankedEntry
from kvsim.records.memory import Objects, Room, Zeros, copied
from kvsim.records.paged import Block, BlockPool
from kvsim.records.queue import Neighbours
from kvsim.records.record import NONE
from kvsim.registry import Registry, overridden
from kvsim.rules.blocks.pool import unlink
from kvsim.rules.eviction import policies as rules
from kvsim.rules.eviction.ranking import is_cached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from kvsim.records.contents import Contents
    from kvsim.records.memory import Memory
    from kvsim.trace.turns import Turns


#: Capacity of the queue of a policy without a pool; a full queue is compacted.
MANY = 1 << 20
#: Methods that a policy may override; it then runs in Python only.
ORDERS = ("insert", "remove", "evict", "cached", "hit", "foresee", "arrived")


class EvictionPolicy(Parametric, ABC):
    """The eviction order of blocks with cached content that no request references.

    The block pool changes reference counts and keys. It calls :meth:`evict` only if no free block
    without content is left. A policy that uses :meth:`foresee` and :meth:`arrived` sets
    ``foresees``.

    :meth:`cached` is called when a block in use gets content. :meth:`insert` follows when its last
    request frees it, and :meth:`remove` when a hit reuses it. :meth:`evict` ends the content; the
    block may then be cached again with other content. Decisions may depend only on these calls, on
    :attr:`now` and on the parameters. :func:`kvsim.testing.check_eviction` checks this.

    Examples
    --------
    >>> from kvsim.testing import check_eviction
    >>> class Newest(EvictionPolicy):
    ...     def __init__(self):
    ...         self.blocks = []
    ...     def insert(self, block_id):
    ...         self.blocks.insert(0, block_id)
    ...     def remove(self, block_id):
    ...         self.blocks.remove(block_id)
    ...     def evict(self):
    ...         return self.blocks.pop(0)
    ...     def __len__(self):
    ...         return len(self.blocks)
    ...     def __iter__(self):
    ...         return iter(self.blocks)
    >>> check_eviction(Newest, num_runs=1)
    """

    foresees = False
    #: True if the policy uses whether the session of a request continues.
    tracks_sessions = False
    #: The rules that run, by :class:`~kvsim.records.eviction.Eviction`; PYTHON for a Python policy.
    rules_of: ClassVar[int] = PYTHON_POLICY
    #: Returns the time in seconds; a replica sets its own clock.
    clock: Callable[[], float] = staticmethod(lambda: 0.0)

    @property
    def now(self) -> float:
        """Seconds on the replica's clock: the time at which the step is scheduled, or its end."""
        return self.clock()

    @property
    def runs_by_rules(self) -> bool:
        """True if no method of the policy replaces its rules."""
        return self.rules_of != PYTHON_POLICY and not overridden(self, ORDERS)

    def prepare(self, pool: BlockPool, memory: Memory) -> EvictionPolicy:
        """Lay out the policy's state in a pool's memory; return the policy for Python calls."""
        return self

    def kept(self, turns: Turns) -> NDArray[Any]:
        """Return for each request the number that the policy reads as ``goes_on``, 0 for none."""
        return turns.goes_on

    def set_time(self, clock: Callable[[], float], state: Any) -> None:
        """Set the clock; ``state`` is the replica that it belongs to."""
        self.clock = clock

    @abstractmethod
    def insert(self, block_id: int) -> None:
        """Insert a block that has lost its last reference. Mutates."""

    @abstractmethod
    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again. Mutates."""

    @abstractmethod
    def evict(self) -> int:
        """Remove and return the block to evict; there is at least one block. Mutates."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of blocks in the order."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """Iterate over the blocks, each once, the next victim first. Does not mutate."""

    # Optional notifications, which do nothing by default.

    def cached(self, block_id: int, key: int) -> None:
        """Record the key of a block in use. Mutates."""

    def hit(self, block_id: int) -> None:
        """Record a prefix hit on a block in use, or on a free one before ``remove``. Mutates."""

    def foresee(self, accesses: Sequence[Sequence[int]]) -> None:
        """Receive the keys of every prompt of the trace, in order of arrival. Mutates."""

    def arrived(self, keys: Sequence[int]) -> None:
        """Record that a prompt with these keys was admitted. Mutates."""


#: Factories take keyword parameters only.
EVICTION_POLICIES: Registry[EvictionPolicy] = Registry(
    "eviction policy", "kvsim.kv", EvictionPolicy, "kvsim.eviction_policies"
)


def init_policy(policy: EvictionPolicy, pool: BlockPool, memory: Memory) -> None:
    """Lay out a policy's state in a pool's record; of a Python policy, store a reference only."""
    num_blocks = pool.num_usable + 1
    if policy.rules_of == PYTHON_POLICY or not policy.runs_by_rules:
        pool.policy, pool.python = PYTHON_POLICY, policy.prepare(pool, memory)
        return
    pool.policy = policy.rules_of
    if isinstance(policy, RulePolicy):
        policy.pool, policy.memory = pool, memory
    if pool.policy == Eviction.LRU:
        pool.line.size = 2 * num_blocks
        pool.line.entries = memory.shorts(pool.line.size)
    else:
        pool.notes = memory.room(Note, num_blocks)
        pool.rankings = memory.records(Ranking, 2)
        for queue in range(2):
            pool.rankings[queue].entries = memory.room(RankedEntry, 2 * num_blocks)
    if pool.policy == Eviction.S3FIFO:
        init_contents(memory, pool.ghosts, num_blocks)


def init_contents(memory: Memory, contents: Contents, count: int) -> None:
    """Lay out records for ``count`` contents; untouched records take no memory."""
    num_buckets = 1 << max(2 * count - 1, 1).bit_length()
    contents.rows = memory.room(Content, count + 2)  # index 0, and one added before one is removed
    contents.buckets = memory.ints(num_buckets)
    contents.bucket_mask = num_buckets - 1


def victims(pool: BlockPool) -> Iterator[int]:
    """Yield the cached free blocks of a pool, next victim first. Does not mutate."""
    if pool.policy == PYTHON_POLICY:
        yield from pool.python
    elif pool.policy == Eviction.LRU:
        line = pool.line
        waiting = (line.entries[at] for at in range(line.first, line.stop))
        yield from (k for k in waiting if k != NONE)
    else:
        twin = copied(pool)
        for _ in range(twin.num_cached):
            k = rules.evict(twin)
            yield k
            if pool.policy == Eviction.BELADY:  # its next victim may be a copy
                unlink(twin, k)


def evictable(pool: BlockPool) -> list[int]:
    """Return the cached free blocks of a pool, in no particular order."""
    if pool.policy == PYTHON_POLICY and isinstance(pool.python, RulePolicy):
        return evictable(pool.python.pool)
    if pool.policy in (PYTHON_POLICY, Eviction.LRU):
        return list(victims(pool))
    entries = (r.entries[place] for r in pool.rankings for place in range(r.length))
    return list({entry.block for entry in entries if is_cached(pool, entry.block)})


class RulePolicy(EvictionPolicy):
    """A policy with rules that run as Python or compiled; outside a replica it has its own pool."""

    def __init__(self) -> None:
        self.pool: BlockPool = BlockPool()
        self.memory: Memory
        self.pool.blocks = Room(Block)  # type: ignore[assignment]
        self.pool.places = Room(Neighbours)  # type: ignore[assignment]
        init_policy(self, self.pool, Objects())
        self.pool.policy = self.rules_of
        self.pool.line.entries, self.pool.line.size = Zeros(), MANY  # type: ignore[assignment]

    def insert(self, block_id: int) -> None:
        self.pool.blocks[block_id].ref_cnt = 0
        rules.insert_victim(self.pool, block_id)

    def remove(self, block_id: int) -> None:
        rules.remove_victim(self.pool, block_id)
        self.pool.blocks[block_id].ref_cnt = 1

    def evict(self) -> int:
        block_id = rules.evict(self.pool)
        self.pool.blocks[block_id].ref_cnt = 1
        return block_id

    def cached(self, block_id: int, key: int) -> None:
        block = self.pool.blocks[block_id]
        block.key, block.ref_cnt, block.hashed = key, 1, True
        rules.record_cached(self.pool, block_id)

    def hit(self, block_id: int) -> None:
        rules.record_hit(self.pool, block_id)

    def __len__(self) -> int:
        return self.pool.num_cached

    def __iter__(self) -> Iterator[int]:
        return victims(self.pool)


class Alone(RulePolicy):
    """A user's rules with a pool of their own, outside a replica."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.pool.policy, self.pool.python = PYTHON_POLICY, policy
        policy.pool, policy.clock = self.pool, lambda: self.now

    def evict(self) -> int:
        """Return the block that the rules return, without a check that it is cached."""
        self.pool.num_cached -= 1
        block_id: int = self.pool.python.evict()
        self.pool.blocks[block_id].ref_cnt = 1
        return block_id


@EVICTION_POLICIES.register("lru")
class LRU(RulePolicy):
    """Evicts the least recently freed block first: vLLM's order.

    A request frees its blocks last to first, so the end of its sequence is evicted before the
    prefix, which other requests may share.
    """

    rules_of = Eviction.LRU


@EVICTION_POLICIES.register("fifo")
class FIFO(RulePolicy):
    """Evicts the block that has been cached longest, regardless of its hits."""

    rules_of = Eviction.FIFO


@EVICTION_POLICIES.register("lfu")
class LFU(RulePolicy):
    """Evicts the block with the fewest prefix hits; among equals, the least recently freed one."""

    rules_of = Eviction.LFU


@EVICTION_POLICIES.register("s3fifo")
class S3FIFO(RulePolicy):
    """Uses three queues, so that content used once does not displace reused content (SOSP 2023).

    New content starts in a small queue, and moves to the main queue if it is hit twice there. The
    key of a block evicted from the small queue is kept as a ghost: content that is cached again
    while its ghost exists enters the main queue at once. In the main queue, a block with hits moves
    to the end of the queue instead of being evicted.
    """

    rules_of = Eviction.S3FIFO


@EVICTION_POLICIES.register("sieve")
class Sieve(RulePolicy):
    """Moves a hand along the queue of contents; it spares contents hit since it last passed them.

    Source: SIEVE (NSDI 2024).
    """

    rules_of = Eviction.SIEVE
