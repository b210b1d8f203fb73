"""S3-FIFO: three queues that keep one-hit wonders from pushing out what is reused."""

from __future__ import annotations

from collections import OrderedDict
from copy import copy
from typing import TYPE_CHECKING

from kvsim.kv.eviction import EVICTION_POLICIES, EvictionPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Share of the cached blocks that the small queue may take, and the highest count of hits kept
#: (Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023, section 4).
SMALL_SHARE = 0.1
MAX_HITS = 3


@EVICTION_POLICIES.register("s3fifo")
class S3FIFO(EvictionPolicy):
    """New content starts in a small queue and moves to the main one if it is hit twice there.

    What the small queue gives up is remembered as a ghost: content that comes back while its ghost
    lives goes to the main queue at once. The main queue gives a hit block another round. Blocks in
    use keep their place but cannot be victims.
    """

    def __init__(self) -> None:
        self._small: OrderedDict[int, None] = OrderedDict()  # all cached blocks, in use or free
        self._main: OrderedDict[int, None] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()  # keys
        self._free: set[int] = set()
        self._key_of: dict[int, int] = {}
        self._hits: dict[int, int] = {}

    def cached(self, block_id: int, key: int) -> None:  # noqa: D102 - see EvictionPolicy
        queue = self._small
        if key in self._ghosts:
            del self._ghosts[key]
            queue = self._main
        queue[block_id] = None
        self._key_of[block_id] = key
        self._hits[block_id] = 0

    def hit(self, block_id: int) -> None:  # noqa: D102
        self._hits[block_id] = min(self._hits[block_id] + 1, MAX_HITS)

    def insert(self, block_id: int) -> None:  # noqa: D102
        self._free.add(block_id)

    def remove(self, block_id: int) -> None:  # noqa: D102
        self._free.remove(block_id)

    def evict(self) -> int:  # noqa: D102
        while True:
            num_cached = len(self._small) + len(self._main)
            small_first = len(self._small) >= SMALL_SHARE * num_cached
            for queue in (self._small, self._main) if small_first else (self._main, self._small):
                block_id = next((b for b in queue if b in self._free), None)
                if block_id is not None:
                    break
            else:
                raise RuntimeError("no free block to evict")
            del queue[block_id]
            hits = self._hits[block_id]
            if queue is self._small and hits > 1:
                self._main[block_id] = None
                self._hits[block_id] = 0
            elif queue is self._main and hits:
                self._main[block_id] = None
                self._hits[block_id] = hits - 1
            else:
                self._leave(block_id, ghost=queue is self._small)
                return block_id

    def _leave(self, block_id: int, *, ghost: bool) -> None:
        self._free.remove(block_id)
        del self._hits[block_id]
        key = self._key_of.pop(block_id)
        if ghost:
            self._ghosts[key] = None
            self._ghosts.move_to_end(key)
            while len(self._ghosts) > max(len(self._main), 1):
                self._ghosts.popitem(last=False)

    def __len__(self) -> int:
        return len(self._free)

    def __iter__(self) -> Iterator[int]:
        twin = copy(self)
        for name, value in vars(self).items():
            setattr(twin, name, value.copy())
        for _ in range(len(self)):
            yield twin.evict()
