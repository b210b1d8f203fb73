"""SIEVE: one queue, and a hand that takes the first block that was not hit since it came by."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from kvsim.kv.eviction import EVICTION_POLICIES, EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator


@EVICTION_POLICIES.register("sieve")
class Sieve(EvictionPolicy):
    """Content in order of arrival; a hit moves nothing but marks its block.

    A hand goes from the oldest block to the newest and round again. It takes the mark of a block
    that has one, and evicts the first block without (Zhang et al., NSDI 2024, algorithm 1). Blocks
    in use keep their place and their mark; the hand passes over them.
    """

    def __init__(self) -> None:
        self._queue: list[int] = []  # all cached blocks, in use or free, oldest first
        self._hand = 0  # the place in the queue that it looks at next
        self._marked: set[int] = set()
        self._free: set[int] = set()

    def cached(self, block_id: int, key: int) -> None:  # noqa: D102 - see EvictionPolicy
        del key
        self._queue.append(block_id)

    def hit(self, block_id: int) -> None:  # noqa: D102
        self._marked.add(block_id)

    def insert(self, block_id: int) -> None:  # noqa: D102
        self._free.add(block_id)

    def remove(self, block_id: int) -> None:  # noqa: D102
        self._free.remove(block_id)

    def evict(self) -> int:  # noqa: D102
        place = self._hand
        while self._queue[place] not in self._free or self._queue[place] in self._marked:
            if self._queue[place] in self._free:
                self._marked.remove(self._queue[place])
            place = (place + 1) % len(self._queue)
        victim = self._queue.pop(place)
        self._free.remove(victim)
        self._hand = place if place < len(self._queue) else 0  # past the newest, the oldest
        return victim

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[int]:
        twin = deepcopy(self)
        for _ in range(len(self)):
            yield twin.evict()
