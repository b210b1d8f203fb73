"""Which cached, unreferenced block gives way first."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

from kvsim.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator


class EvictionPolicy(Protocol):
    """Order of the blocks that hold reusable content and that nobody references.

    A policy never touches reference counts or hashes; the block pool asks it for a victim only
    when no block without content is left.
    """

    def insert(self, block_id: int) -> None:
        """Take in a block whose last reference has gone. Mutates."""

    def remove(self, block_id: int) -> None:
        """Let go of a block that a prefix hit references again. Mutates."""

    def evict(self) -> int:
        """Remove and return the block to give away. Mutates; never called when empty."""

    def __len__(self) -> int:
        """Blocks held."""

    def __iter__(self) -> Iterator[int]:
        """Blocks held, next victim first. Does not mutate."""


EVICTION_POLICIES: Registry[EvictionPolicy] = Registry("eviction policy", "kvsim.kv")


@EVICTION_POLICIES.register("lru")
class LRU:
    """Least recently freed first: vLLM's order.

    A request frees its blocks last to first, so of one request the end of the sequence goes
    before the prefix that others may share.
    """

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
