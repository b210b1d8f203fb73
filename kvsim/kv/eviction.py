"""Eviction policies: the order in which cached, unreferenced blocks are evicted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
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
from kvsim.rules.eviction import policies as rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from kvsim.records.contents import Contents
    from kvsim.records.memory import Memory
    from kvsim.trace.turns import Turns


#: Blocks beyond which a policy by itself closes its gaps.
MANY = 1 << 20
#: Methods that a policy may override, at the price of the compiled engine.
ORDERS = ("insert", "remove", "evict", "cached", "hit", "foresee", "arrived")


class EvictionPolicy(Parametric, ABC):
    """Order of the blocks with reusable content that no request references.

    A policy never touches reference counts or hashes; the block pool asks it for a victim only
    when no block without content is left. ``foresees`` says that it makes use of :meth:`foresee`
    and :meth:`arrived`.

    A block is ``cached`` when it gets its content, in use; then it is inserted and removed as its
    users free and reuse it; ``evict`` ends the content, and the same number may be cached again
    with another one. Its decisions may depend only on these calls, on :attr:`now` and on its
    parameters. :func:`kvsim.testing.check_eviction` checks this.

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
    #: Whether it reads if the session of a request goes on.
    tracks_sessions = False
    #: The policy's number among the rules, 0 for one that is plain Python.
    rules_of: ClassVar[int] = PYTHON_POLICY
    #: Tells the time; a replica sets its own clock.
    clock: Callable[[], float] = staticmethod(lambda: 0.0)

    @property
    def now(self) -> float:
        """Seconds on the replica's clock: the start of the step that is scheduled, or its end."""
        return self.clock()

    @property
    def runs_by_rules(self) -> bool:
        """True if the rules alone decide its behaviour."""
        return self.rules_of != PYTHON_POLICY and not overridden(self, ORDERS)

    def prepare(self, pool: BlockPool, memory: Memory) -> EvictionPolicy:
        """Lay out its state in a pool's memory; return the policy that Python calls."""
        del pool, memory
        return self

    def kept(self, turns: Turns) -> NDArray[Any]:
        """Return a number by request: what the policy makes of its session, 0 for nothing."""
        return turns.goes_on

    def tell_time(self, clock: Callable[[], float], state: Any) -> None:
        """Set the clock, and the replica that it belongs to."""
        del state
        self.clock = clock

    @abstractmethod
    def insert(self, block_id: int) -> None:
        """Insert a block after its last reference is gone. Mutates."""

    @abstractmethod
    def remove(self, block_id: int) -> None:
        """Remove a block that a prefix hit references again. Mutates."""

    @abstractmethod
    def evict(self) -> int:
        """Remove and return the block to evict. Mutates; never called when empty."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of blocks in the order."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """Iterate over the blocks, each once. Does not mutate.

        The first is the one that :meth:`evict` would return now.
        """

    # What a policy may want to know besides; by default it does not.

    def cached(self, block_id: int, key: int) -> None:
        """Record the key of a block in use. Mutates."""

    def hit(self, block_id: int) -> None:
        """Record a prefix hit on a block, free or in use, before ``remove``. Mutates."""

    def foresee(self, accesses: Sequence[Sequence[int]]) -> None:
        """Receive the keys of every prompt of the trace, in order of arrival. Mutates."""

    def arrived(self, keys: Sequence[int]) -> None:
        """Record that a prompt with these keys was admitted. Mutates."""


#: Factories take keyword parameters only.
EVICTION_POLICIES: Registry[EvictionPolicy] = Registry(
    "eviction policy", "kvsim.kv", EvictionPolicy, "kvsim.eviction_policies"
)


def eviction_policy(text: str) -> EvictionPolicy:
    """Make the policy ``NAME[:KEY=VALUE]...``.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    return EVICTION_POLICIES.make(text)


def lay_out_policy(policy: EvictionPolicy, pool: BlockPool, memory: Memory) -> None:
    """Lay out a policy's state in a pool's record; the policy itself if it is plain Python."""
    num_blocks = pool.num_usable + 1
    if policy.rules_of == PYTHON_POLICY or not policy.runs_by_rules:
        pool.policy, pool.python = PYTHON_POLICY, policy.prepare(pool, memory)
        return
    pool.policy = policy.rules_of
    if pool.policy == Eviction.LRU:
        pool.line.size = 2 * num_blocks
        pool.line.entries = memory.shorts(pool.line.size)
    else:
        pool.notes = memory.room(Note, num_blocks)
        pool.rankings = memory.records(Ranking, 2)
        for queue in range(2):
            pool.rankings[queue].entries = memory.room(RankedEntry, num_blocks)
    if pool.policy == Eviction.S3FIFO:
        lay_out_contents(memory, pool.ghosts, num_blocks)


def lay_out_contents(memory: Memory, contents: Contents, count: int) -> None:
    """Lay out room for ``count`` contents; untouched room takes no memory."""
    num_buckets = 1 << max(2 * count - 1, 1).bit_length()
    contents.rows = memory.room(Content, count + 2)  # one comes before one goes; none is place 0
    contents.buckets = memory.ints(num_buckets)
    contents.bucket_mask = num_buckets - 1


def victims(pool: BlockPool) -> Iterator[int]:
    """Return the cached free blocks of a pool, next victim first. Does not mutate."""
    if pool.policy == PYTHON_POLICY:
        policy: Any = pool.python
        yield from policy
    elif pool.policy == Eviction.LRU:
        line = pool.line
        waiting = (line.entries[at] for at in range(line.first, line.stop))
        yield from (k for k in waiting if k != NONE)
    else:
        twin = copied(pool)
        for _ in range(twin.num_cached):
            yield rules.evict(twin)


def evictable(pool: BlockPool) -> list[int]:
    """Return the cached free blocks of a pool, in no order."""
    policy: Any = pool.python
    if pool.policy == PYTHON_POLICY and isinstance(policy, RulePolicy):
        return evictable(policy.pool)
    if pool.policy in (PYTHON_POLICY, Eviction.LRU):
        return list(victims(pool))
    found = []
    for ranking in pool.rankings:
        ranked = [ranking.entries[place].block for place in range(ranking.length)]
        found += [k for k in ranked if pool.blocks[k].ref_cnt == 0]
    return found


class RulePolicy(EvictionPolicy):
    """A policy with rules that both engines run; used alone, it has blocks of its own."""

    def __init__(self) -> None:
        self.pool = BlockPool()
        self.pool.blocks = Room(Block)  # type: ignore[assignment]
        self.pool.places = Room(Neighbours)  # type: ignore[assignment]
        lay_out_policy(self, self.pool, Objects())
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
        rules.note_cached(self.pool, block_id)

    def hit(self, block_id: int) -> None:
        rules.note_hit(self.pool, block_id)

    def __len__(self) -> int:
        return self.pool.num_cached

    def __iter__(self) -> Iterator[int]:
        return victims(self.pool)


class Alone(RulePolicy):
    """A user's rules over blocks of their own, without a replica."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.pool.policy, self.pool.python = PYTHON_POLICY, policy
        policy.pool, policy.clock = self.pool, lambda: self.now

    def evict(self) -> int:
        """Return what the rules say, right or wrong; a pool refuses the latter."""
        self.pool.num_cached -= 1
        block_id: int = self.pool.python.evict()  # type: ignore[attr-defined]
        self.pool.blocks[block_id].ref_cnt = 1
        return block_id


class Ranked(EvictionPolicy):
    """Evicts blocks by a rank that a subclass sets at insertion, smallest first.

    A heap with lazy deletion: only the latest entry of a block counts.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], int]] = []
        self._rank_of: dict[int, tuple[float, ...]] = {}

    @abstractmethod
    def rank(self, block_id: int) -> tuple[float, ...]:
        """Return the order of a block among the victims; no two blocks are equal."""

    def insert(self, block_id: int) -> None:
        rank = self._rank_of[block_id] = self.rank(block_id)
        heappush(self._heap, (rank, block_id))
        if len(self._heap) > 2 * len(self._rank_of) + 64:  # mostly entries that count no more
            self._heap = [(rank, block_id) for block_id, rank in self._rank_of.items()]
            heapify(self._heap)

    def remove(self, block_id: int) -> None:
        del self._rank_of[block_id]

    def evict(self) -> int:
        while True:
            rank, block_id = heappop(self._heap)
            if self._rank_of.get(block_id) == rank:
                del self._rank_of[block_id]
                return block_id

    def __len__(self) -> int:
        return len(self._rank_of)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rank_of, key=self._rank_of.__getitem__))


@EVICTION_POLICIES.register("lru")
class LRU(RulePolicy):
    """Least recently freed first: vLLM's order.

    A request frees its blocks last to first, so of one request the end of the sequence goes
    before the prefix that others may share.
    """

    rules_of = Eviction.LRU


@EVICTION_POLICIES.register("fifo")
class FIFO(RulePolicy):
    """Longest in the cache first, however often it was hit."""

    rules_of = Eviction.FIFO


@EVICTION_POLICIES.register("lfu")
class LFU(RulePolicy):
    """Fewest prefix hits since it was cached first; among equals, least recently freed."""

    rules_of = Eviction.LFU


@EVICTION_POLICIES.register("s3fifo")
class S3FIFO(RulePolicy):
    """Three queues that keep contents used once from evicting reused ones (SOSP 2023).

    New content starts in a small queue and moves to the main one if it is hit twice there. What
    the small queue gives up is remembered as a ghost: content that comes back while its ghost
    lives goes to the main queue at once. The main queue gives a hit block another round.
    """

    rules_of = Eviction.S3FIFO


@EVICTION_POLICIES.register("sieve")
class Sieve(RulePolicy):
    """A hand sweeps the queue of contents and spares those hit since its last pass (NSDI 2024)."""

    rules_of = Eviction.SIEVE
