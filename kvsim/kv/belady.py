"""Belady's optimum: an upper bound on the hits of every eviction policy."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from kvsim.kv.eviction import EVICTION_POLICIES, Ranked

if TYPE_CHECKING:
    from collections.abc import Sequence

NEVER = math.inf


@EVICTION_POLICIES.register("belady")
class Belady(Ranked):
    """Evicts the content with the furthest next use first (Belady 1966).

    The policy knows the prompts of the whole trace. If the same request is the next to use several
    contents, the last one in its prompt is evicted first, as it cannot be hit without the earlier
    ones. A second copy of a content is evicted before everything else.
    """

    foresees = True

    def __init__(self) -> None:
        super().__init__()
        self._uses: dict[int, deque[int]] = {}  # key -> future requests with it, in order
        self._depth: dict[int, int] = {}  # key -> index of its block in a prompt
        self._key_of: dict[int, int] = {}
        self._blocks_of: dict[int, list[int]] = {}  # key -> blocks that hold it, oldest first
        self._order: dict[tuple[int, ...], deque[int]] = {}
        self._num_ranked = 0

    def foresee(self, accesses: Sequence[Sequence[int]]) -> None:
        for order, keys in enumerate(accesses):
            for depth, key in enumerate(keys):
                self._uses.setdefault(key, deque()).append(order)
                self._depth[key] = depth
            if keys:
                self._order.setdefault((keys[-1], len(keys)), deque()).append(order)

    def arrived(self, keys: Sequence[int]) -> None:
        orders = self._order.get((keys[-1], len(keys))) if keys else None
        if not orders:
            return  # readmitted after a preemption: its uses are removed already
        order = orders.popleft()
        for key in keys:
            self._uses[key].remove(order)
            for block_id in self._blocks_of.get(key, ()):
                if block_id in self._rank_of:
                    self.insert(block_id)  # its rank has changed

    def cached(self, block_id: int, key: int) -> None:
        self._key_of[block_id] = key
        self._blocks_of.setdefault(key, []).append(block_id)

    def rank(self, block_id: int) -> tuple[float, ...]:
        self._num_ranked += 1
        key = self._key_of[block_id]
        uses = self._uses.get(key)
        next_use = uses[0] if uses else NEVER
        if self._blocks_of[key][0] != block_id:
            next_use = NEVER
        return -next_use, -self._depth.get(key, NEVER), self._num_ranked

    def evict(self) -> int:
        block_id = super().evict()
        blocks = self._blocks_of[self._key_of.pop(block_id)]
        blocks.remove(block_id)
        if blocks and blocks[0] in self._rank_of:
            self.insert(blocks[0])  # now the oldest copy, so its rank has changed
        return block_id
