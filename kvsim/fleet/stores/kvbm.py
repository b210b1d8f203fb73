"""Dynamo's KV block manager: each replica's host memory, and disks for reused blocks."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from kvsim.fleet.kv_store.deliveries import GONE, Deliveries
from kvsim.fleet.kv_store.lru_store import LruStore
from kvsim.fleet.kv_store.store import STORES, Portion, Store
from kvsim.fleet.parameters import Delay, Seconds, Weight  # noqa: TC001 - read when made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.prefix_index.event_reader import EventReader

GIB = 1 << 30
#: Frequency from which a block is copied to the disks.
FREQUENT = 2


@STORES.register("kvbm")
class BlockManager(Store):
    """Host memory stores every block that its replica computes; disks store reused blocks.

    A block's frequency starts at one, doubles when the block is found, and drops by one after every
    ``decay`` seconds. A block with a frequency of at least two is also copied to the disks. Blocks
    read from disks cross both links, one after the other, and stay in host memory. Each tier evicts
    its least recently used blocks. Writes take no time.

    Source: Dynamo's documentation of the KV block manager, and the links of its mocker: 14 GB/s
    from host memory, 7 GB/s from disks. Object storage behind the disks is not simulated.

    Parameters
    ----------
    gib, disk_gib : host memory and disks of each replica, GiB
    decay : seconds after which a frequency drops by one
    delay : seconds until a computed block is stored
    """

    fabrics = {"host": "kvbm-host", "disk": "kvbm-disk"}  # noqa: RUF012 - nobody changes it

    def __init__(
        self,
        *,
        gib: Weight = 100.0,
        disk_gib: Weight = 0.0,
        decay: Seconds = 600.0,
        delay: Delay = 0.0,
    ) -> None:
        self.event_delay = delay
        self._bytes = gib * GIB, disk_gib * GIB
        self._decay = decay
        self._coming = Deliveries(delay)
        self._tiers: dict[int, tuple[LruStore, LruStore]] = {}
        self._uses: dict[tuple[int, int], tuple[int, float]] = {}  # frequency, and its time
        self._num_gone = 0  # evictions of removed replicas

    def start(self, reader: EventReader, entry_bytes: float) -> None:
        self._room = tuple(size // entry_bytes for size in self._bytes)
        reader.listeners.append(self._coming.take)

    def look_up(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        for time, place, stored in self._coming.due(now):
            for key in stored if place != GONE else ():
                self._put(place, key, max(1, self._frequency(place, key, time)), time)
        host, disk = self._of(replica)
        found = []
        for key in keys:
            if key not in host and key not in disk:
                break
            found.append("host" if key in host else "disk")
        self.num_evicted = self._num_gone + sum(one.num_evicted for one, _ in self._tiers.values())
        return [
            Portion(tier, f"{tier} {replica}", len(list(same))) for tier, same in groupby(found)
        ]

    def own_tiers(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        return self.look_up(keys, replica, now)

    def read(self, keys: Sequence[int], replica: int, now: float) -> None:
        for key in keys:
            self._put(replica, key, 2 * max(1, self._frequency(replica, key, now)), now)

    def forget(self, replica: int) -> None:
        self._coming.forget(replica)
        self._num_gone += self._of(replica)[0].num_evicted
        del self._tiers[replica]
        self._uses = {which: use for which, use in self._uses.items() if which[0] != replica}

    def _frequency(self, replica: int, key: int, now: float) -> int:
        """Return a block's frequency after decay."""
        frequency, time = self._uses.get((replica, key), (0, now))
        return max(0, frequency - int(now // self._decay - time // self._decay))

    def _put(self, replica: int, key: int, frequency: int, now: float) -> None:
        """Record a use: the block is in host memory, and on disks if it is frequent. Mutates."""
        host, disk = self._of(replica)
        self._uses[replica, key] = frequency, now
        host.put([key])
        if frequency >= FREQUENT or key in disk:
            disk.put([key])

    def _of(self, replica: int) -> tuple[LruStore, LruStore]:
        if replica not in self._tiers:
            host, disk = (LruStore(room) for room in self._room)
            self._tiers[replica] = host, disk
        return self._tiers[replica]
