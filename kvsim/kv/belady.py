"""Belady's optimum: an upper bound on the hits of every eviction policy."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

from kvsim.kv.eviction import EVICTION_POLICIES, MANY, RulePolicy
from kvsim.records.eviction import Eviction
from kvsim.records.record import NONE
from kvsim.rules.blocks import pool as pool_rules
from kvsim.rules.eviction.belady import end_use

if TYPE_CHECKING:
    from collections.abc import Sequence


@EVICTION_POLICIES.register("belady")
class Belady(RulePolicy):
    """Evicts the content with the furthest next use first (Belady 1966).

    The policy knows the prompts of the whole trace. If the same request is the next to use several
    contents, the last one in its prompt is evicted first, as it cannot be hit without the earlier
    ones. A second copy of a content is evicted before everything else.
    """

    rules_of = Eviction.BELADY
    foresees = True

    def __init__(self) -> None:
        super().__init__()
        self.pool.num_usable = MANY
        self.pool.buckets = [NONE]
        self._coming: dict[tuple[int, ...], deque[int]] = {}  # prompts that have not arrived

    def foresee(self, accesses: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(accesses):
            self._coming.setdefault(tuple(path), deque()).append(row)
        lengths = [len(path) for path in accesses]
        flat = np.array([key for path in accesses for key in path], np.int64)
        keys, content = np.unique(flat, return_inverse=True)
        order = np.argsort(content, kind="stable")
        stops = np.cumsum(np.bincount(content, minlength=len(keys)))
        depths = np.zeros(len(keys), np.int64)
        depths[content] = np.concatenate([np.arange(n) for n in lengths] or [content])
        foresight, list_of = self.pool.foresight, self.memory.list_of
        foresight.keys, foresight.num_keys = list_of(keys), len(keys)
        foresight.depths, foresight.ends = list_of(depths), list_of(stops)
        foresight.next_uses = list_of(np.append(0, stops)[:-1])
        foresight.users = list_of(np.repeat(np.arange(len(lengths)), lengths)[order])
        foresight.admitted = self.memory.ints(len(lengths))

    def arrived(self, keys: Sequence[int]) -> None:
        coming = self._coming.get(tuple(keys))
        if coming:
            end_use(self.pool, coming.popleft(), list(keys), len(keys), 1)

    def cached(self, block_id: int, key: int) -> None:
        super().cached(block_id, key)
        pool_rules.link(self.pool, block_id)

    def evict(self) -> int:
        block_id = super().evict()
        self.pool.blocks[block_id].hashed = False
        pool_rules.unlink(self.pool, block_id)
        return block_id
