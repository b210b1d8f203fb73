"""LMCache: each replica's own host memory and disks, and a server behind all of them."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from kvsim.fleet.kv_store.deliveries import GONE, Deliveries
from kvsim.fleet.kv_store.lru_store import LruStore
from kvsim.fleet.kv_store.store import STORES, Portion, Store
from kvsim.fleet.parameters import Count, Delay, Weight  # noqa: TC001 - read when made

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.fleet.prefix_index.event_reader import EventReader

GIB = 1 << 30


@STORES.register("lmcache")
class LMCache(Store):
    """Every tier with a size above 0 stores chunks of prompts, and evicts by LRU.

    Neither a partial chunk at a prompt's end nor generated tokens are saved. A chunk is written to
    all tiers, in no time, when its last block has been computed. It is read from the first tier
    that has it: the replica's memory, its disks, the server.

    Source: LMCache's documentation (chunk_size 256, max_local_cpu_size 5 GB, save_unfull_chunk and
    save_decode_cache off), as Dynamo's page on it describes it.

    Parameters
    ----------
    gib, disk_gib : host memory and disks of each replica, GiB
    server_gib : memory of the server, which is read over the fleet's fabric
    chunk : tokens per chunk; at least those of a block
    delay : seconds until a computed chunk is stored
    """

    fabrics = {"host": "lmcache", "disk": "nvme-posix"}  # noqa: RUF012 - nobody changes it

    def __init__(
        self,
        *,
        gib: Weight = 5.0,
        disk_gib: Weight = 0.0,
        server_gib: Weight = 0.0,
        chunk: Count = 256,
        delay: Delay = 0.0,
    ) -> None:
        self.event_delay = delay
        self._bytes = {"host": gib * GIB, "disk": disk_gib * GIB, "server": server_gib * GIB}
        self._chunk_tokens = chunk
        self._coming = Deliveries(delay)
        self._lru_stores: dict[tuple[str, int], LruStore] = {}
        self._ends: dict[int, float] = {}  # by last block of a chunk: its first look-up
        self._num_gone = 0  # evictions of removed replicas

    def start(self, reader: EventReader, entry_bytes: float) -> None:
        self._per_chunk = max(1, self._chunk_tokens // reader.entry_tokens)
        self._chunk_bytes = entry_bytes * self._per_chunk
        reader.listeners.append(self._coming.take)

    def look_up(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        ends = keys[self._per_chunk - 1 :: self._per_chunk]
        for key in ends:
            self._ends.setdefault(key, now)
        for time, place, stored in self._coming.due(now):
            # A generated block was computed before any prompt that has it was looked up.
            told = time - self.event_delay
            chunks = [key for key in stored if self._ends.get(key, math.inf) <= told]
            for tier in self._bytes if place != GONE else ("server",):
                self._lru_store(tier, place).put(chunks)
        found = list(self._tiers(ends, replica))
        for tier in self._bytes:
            lru_store = self._lru_store(tier, replica)
            lru_store.touch(key for key, _ in zip(ends, found, strict=False) if key in lru_store)
        self.num_evicted = self._num_gone + self._num_evicted()
        return [
            Portion(
                tier,
                None if tier == "server" else f"{tier} {replica}",
                self._per_chunk * len(list(same)),
            )
            for tier, same in groupby(found)
        ]

    def forget(self, replica: int) -> None:
        self._coming.forget(replica)
        self._num_gone += self._num_evicted(replica)
        for tier in ("host", "disk"):
            self._lru_stores.pop((tier, replica), None)

    def _num_evicted(self, replica: int | None = None) -> int:
        """Return the number of blocks evicted from the host memory of one replica, or of all."""
        chunks = sum(
            one.num_evicted
            for (tier, place), one in self._lru_stores.items()
            if tier == "host" and replica in (place, None)
        )
        return chunks * self._per_chunk

    def _lru_store(self, tier: str, replica: int) -> LruStore:
        place = -1 if tier == "server" else replica
        if (tier, place) not in self._lru_stores:
            self._lru_stores[tier, place] = LruStore(self._bytes[tier] // self._chunk_bytes)
        return self._lru_stores[tier, place]

    def _tiers(self, ends: Sequence[int], replica: int) -> Iterator[str]:
        """Yield the tier of each leading chunk, up to the first chunk that no tier holds."""
        for key in ends:
            tier = next((t for t in self._bytes if key in self._lru_store(t, replica)), None)
            if tier is None:
                return
            yield tier
