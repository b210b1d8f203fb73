"""Which cached, unreferenced block gives way first."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

from kvsim.records.memory import column
from kvsim.records.record import NONE
from kvsim.registry import Registry, overridden, parse_spec
from kvsim.rules import eviction as rules
from kvsim.rules.eviction import PYTHON_POLICY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.records.memory import Memory
    from kvsim.records.paged import BlockPool


#: What a policy does in its own way, at the price of the compiled engine.
ORDERS = ("insert", "remove", "evict", "cached", "hit", "foresee", "arrived")


class EvictionPolicy(ABC):
    """Order of the blocks that hold reusable content and that nobody references.

    A policy never touches reference counts or hashes; the block pool asks it for a victim only
    when no block without content is left. ``foresees`` says that it makes use of :meth:`foresee`.
    """

    foresees = False
    #: The policy's number among the rules, 0 for one that is plain Python.
    rules_of: ClassVar[int] = PYTHON_POLICY

    @property
    def runs_by_rules(self) -> bool:
        """Whether the rules say all that it does."""
        return self.rules_of != PYTHON_POLICY and not overridden(self, ORDERS)

    @abstractmethod
    def insert(self, block_id: int) -> None:
        """Take in a block whose last reference has gone. Mutates."""

    @abstractmethod
    def remove(self, block_id: int) -> None:
        """Let go of a block that a prefix hit references again. Mutates."""

    @abstractmethod
    def evict(self) -> int:
        """Remove and return the block to give away. Mutates; never called when empty."""

    @abstractmethod
    def __len__(self) -> int:
        """Blocks held."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """Blocks held, next victim first. Does not mutate."""

    # What a policy may want to know besides; by default it does not.

    def cached(self, block_id: int, key: int) -> None:  # noqa: B027
        """Note that a block in use has got its content's key."""

    def hit(self, block_id: int) -> None:  # noqa: B027
        """Note a prefix hit on a block, free or in use; comes before ``remove``."""

    def foresee(self, accesses: Sequence[Sequence[int]]) -> None:  # noqa: B027
        """Be told the keys of every prompt to come, in order of arrival."""

    def arrived(self, keys: Sequence[int]) -> None:  # noqa: B027
        """Note that a prompt with these keys has been admitted."""


#: Factories take keyword parameters only.
EVICTION_POLICIES: Registry[EvictionPolicy] = Registry("eviction policy", "kvsim.kv")


def eviction_policy(text: str) -> EvictionPolicy:
    """Make the policy ``NAME[:KEY=VALUE]...``: inside an allocator's name, '+' is taken.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, *parts = re.split(r":(?=[^:=]+=)", text)
    base, params = parse_spec("+".join([name, *parts]))
    return EVICTION_POLICIES.create(base, **params)


def lay_out_policy(policy: EvictionPolicy, pool: BlockPool, memory: Memory) -> None:
    """Fill a pool's record with what its policy needs."""
    del memory
    if policy.runs_by_rules:
        pool.policy = policy.rules_of
    else:
        pool.policy, pool.python = PYTHON_POLICY, policy


def victims(pool: BlockPool) -> Iterator[int]:
    """Return the cached free blocks of a pool, next victim first."""
    if pool.policy == PYTHON_POLICY:
        policy: Any = pool.python
        yield from policy
        return
    following, k = column(pool.blocks, "next"), pool.cached.head
    while k != NONE:
        yield k
        k = following[k]


@EVICTION_POLICIES.register("lru")
class LRU(EvictionPolicy):
    """Least recently freed first: vLLM's order.

    A request frees its blocks last to first, so of one request the end of the sequence goes
    before the prefix that others may share.
    """

    rules_of = rules.LRU

    def __init__(self) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()  # O(1) removal from the middle

    def insert(self, block_id: int) -> None:  # noqa: D102 - see EvictionPolicy
        self._blocks[block_id] = None

    def remove(self, block_id: int) -> None:  # noqa: D102
        del self._blocks[block_id]

    def evict(self) -> int:  # noqa: D102
        return self._blocks.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)


class Ranked(EvictionPolicy):
    """Blocks by a rank that a subclass gives at insertion, smallest first.

    A heap with lazy deletion: an entry counts only while it is its block's latest.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], int]] = []
        self._rank_of: dict[int, tuple[float, ...]] = {}

    @abstractmethod
    def rank(self, block_id: int) -> tuple[float, ...]:
        """Return the order of a block among the victims; no two blocks are equal."""

    def insert(self, block_id: int) -> None:  # noqa: D102
        rank = self._rank_of[block_id] = self.rank(block_id)
        heappush(self._heap, (rank, block_id))

    def remove(self, block_id: int) -> None:  # noqa: D102
        del self._rank_of[block_id]

    def evict(self) -> int:  # noqa: D102
        while True:
            rank, block_id = heappop(self._heap)
            if self._rank_of.get(block_id) == rank:
                del self._rank_of[block_id]
                return block_id

    def __len__(self) -> int:
        return len(self._rank_of)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._rank_of, key=self._rank_of.__getitem__))


@EVICTION_POLICIES.register("fifo")
class FIFO(Ranked):
    """Longest in the cache first, however often it was hit."""

    def __init__(self) -> None:
        super().__init__()
        self._num_cached = 0
        self._since: dict[int, int] = {}

    def cached(self, block_id: int, key: int) -> None:  # noqa: D102
        del key
        self._num_cached += 1
        self._since[block_id] = self._num_cached

    def rank(self, block_id: int) -> tuple[float, ...]:  # noqa: D102
        return (self._since[block_id],)


@EVICTION_POLICIES.register("lfu")
class LFU(Ranked):
    """Fewest prefix hits since it was cached first; among equals, least recently freed."""

    def __init__(self) -> None:
        super().__init__()
        self._num_freed = 0
        self._hits: dict[int, int] = {}

    def cached(self, block_id: int, key: int) -> None:  # noqa: D102
        del key
        self._hits[block_id] = 0

    def hit(self, block_id: int) -> None:  # noqa: D102
        self._hits[block_id] += 1

    def rank(self, block_id: int) -> tuple[float, ...]:  # noqa: D102
        self._num_freed += 1
        return self._hits[block_id], self._num_freed
