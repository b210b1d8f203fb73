"""Memory and disks of the whole cluster: every replica finds the KV of all replicas."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from kvsim.fleet.kv_store.deliveries import Deliveries
from kvsim.fleet.kv_store.lru_store import LruStore
from kvsim.fleet.kv_store.store import STORES, Portion, Store
from kvsim.fleet.parameters import Delay, Limit, Share, Weight  # noqa: TC001 - read when made

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.fleet.prefix_index.event_reader import EventReader

GIB = 1 << 30


@STORES.register("mooncake")
class Mooncake(Store):
    """Mooncake Store: one pool of host memory, and disks behind it.

    A block is written to memory and disks, in no time, when its step has ended. It is read from
    memory over the fleet's fabric, or from disks that all readers share. With replicas that have a
    host tier, the store is HiCache's third level: it stores their host copies. A look-up marks the
    blocks that it finds as used. Memory above ``mark`` evicts a batch of the least recently used
    blocks.

    Source: kvcache-ai/Mooncake at 3b5a5941, its design of the store (lease by look-up; above 95 %
    usage, 5 % are evicted) and ssd-offload-benchmark-results.md.

    Parameters
    ----------
    gib : host memory of the fleet, GiB
    disk_gib : disks of the fleet, GiB
    mark : share of the memory above which blocks are evicted
    batch : share of the memory that one eviction frees
    delay : seconds until a computed block is stored
    """

    serves_hosts = True
    fabrics = {"disk": "nvme-raid5x"}  # noqa: RUF012 - a class attribute that nobody changes

    def __init__(
        self,
        *,
        gib: Limit = 100.0,
        disk_gib: Weight = 0.0,
        mark: Share = 0.95,
        batch: Share = 0.05,
        delay: Delay = 0.0,
    ) -> None:
        if mark == 0:
            raise ValueError("KV store 'mooncake': mark=0: must be above 0")
        self.event_delay = delay
        self._bytes = gib * GIB, disk_gib * GIB
        self._share = {"mark": mark, "batch": batch}
        self._coming = Deliveries(delay)

    def start(self, reader: EventReader, entry_bytes: float) -> None:
        memory, disk = (
            math.inf if size == math.inf else size // entry_bytes for size in self._bytes
        )
        self._memory, self._disk = LruStore(memory, **self._share), LruStore(disk)
        reader.listeners.append(self._coming.take)

    def look_up(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        self._put(now)
        found = list(self._tiers(keys))
        self._memory.touch(key for key, tier in zip(keys, found, strict=False) if tier == "memory")
        self._disk.touch(key for key, _ in zip(keys, found, strict=False) if key in self._disk)
        return [
            Portion(tier, "disks" if tier == "disk" else None, len(list(same)))
            for tier, same in groupby(found)
        ]

    def _tiers(self, keys: Sequence[int]) -> Iterator[str]:
        for key in keys:
            if key in self._memory:
                yield "memory"
            elif key in self._disk:
                yield "disk"
            else:
                return

    def _put(self, now: float) -> None:
        """Store the deliveries due by now, in the order of time. Mutates."""
        for _, _, keys in self._coming.due(now):
            self._memory.put(keys)
            self._disk.put(keys)
        self.num_evicted = self._memory.num_evicted
