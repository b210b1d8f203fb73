"""Files in one folder, one per page, that all replicas of a machine read and write."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.fleet.kv_store.deliveries import Deliveries
from kvsim.fleet.kv_store.lru_store import LruStore
from kvsim.fleet.kv_store.store import STORES, Portion, Store
from kvsim.fleet.parameters import Limit  # noqa: TC001 - read when made

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.prefix_index.event_reader import EventReader

GIB = 1 << 30


@STORES.register("file")
class File(Store):
    """Pages in files on disks that all readers share; nothing is evicted while there is room.

    A block is written when its step has ended. With replicas that have a host tier, the files are
    HiCache's third level: they hold its host copies.

    Source: HiCache 0.5.23, ``--hicache-storage-backend file``.

    Parameters
    ----------
    gib : disks, GiB
    """

    serves_hosts = True
    fabrics = {"disk": "nvme-posix"}  # noqa: RUF012 - a class attribute that nobody changes

    def __init__(self, *, gib: Limit = math.inf) -> None:
        self._bytes = gib * GIB
        self._coming = Deliveries(self.event_delay)

    def start(self, reader: EventReader, entry_bytes: float) -> None:
        room = self._bytes if math.isinf(self._bytes) else self._bytes // entry_bytes
        self._files = LruStore(room)
        reader.listeners.append(self._coming.take)

    def look_up(self, keys: Sequence[int], replica: int, now: float) -> list[Portion]:
        for _, _, written in self._coming.due(now):
            self._files.put(written)
        self.num_evicted = self._files.num_evicted
        found = 0
        while found < len(keys) and keys[found] in self._files:
            found += 1
        self._files.touch(keys[:found])
        return [Portion("disk", "disks", found)] if found else []
