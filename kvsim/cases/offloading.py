"""Native CPU offloading in a case's log: copies that begin and end, and the host cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cases.connector import FakeWorker
from kvsim.cases.log import checksum
from kvsim.records.host_cache import HOST_LRU, RECENT_GHOST
from kvsim.records.memory import head
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.cases.log import Entry
    from kvsim.records.host_cache import HostCache
    from kvsim.records.offloading import Job, Offloading


class OffloadingLog(FakeWorker):
    """Adds to a case's log what offloading does, by rules of its own: nobody has to report it."""

    @property
    def _offloading(self) -> Offloading:
        return self._replica.state.offloading

    def will_complete(self) -> bool:  # noqa: D102
        return False

    def report(self) -> None:  # noqa: D102
        pass

    def scheduled(self, step: int, entry: Entry) -> None:
        """Add the copies that began with the step just scheduled. Mutates the entry."""
        offloading, step = self._offloading, self._replica.state.num_calls
        jobs = [*self._jobs(offloading.loads.head), *self._jobs(offloading.stores.head)]
        new = [job for job in jobs if job.step == step]
        loads = [self._load(job) for job in new if job.is_load]
        stores = [self._store(job) for job in new if not job.is_load]
        flushed = [job.number for job in jobs if job.flushed == step]
        for name, rows in (("lj", loads), ("sj", stores), ("fl", flushed)):
            if rows:
                entry[name] = sorted(rows)

    def _ended(self, entry: Entry) -> None:
        """Add the copies that ended with the output taken in just now. Mutates the entry."""
        offloading = self._offloading
        jobs = head(offloading.reported, offloading.num_reported)
        if jobs:
            entry["jc"] = [offloading.jobs[j].number for j in jobs]
        loads = [offloading.jobs[j] for j in jobs if offloading.jobs[j].is_load]
        received = [self._names[job.row] for job in loads if not job.is_sync]
        if received:
            entry["rcv"] = received

    def processed(self, entry: Entry) -> None:
        """Add what ended, who is held, and what is in the host cache. Mutates the entry."""
        super().processed(entry)
        self._ended(entry)
        host = self._offloading.host
        entry["cpu"] = [host.num_chunks, host.num_ready, host.num_writing]
        if host.policy == HOST_LRU:
            entry["co"] = _slots(host, sorted(_held(host), key=lambda k: host.chunks[k].rank))
            return
        lists = [_slots(host, _listed(host, place)) for place in range(RECENT_GHOST)]
        ghosts = [host.lists[place].length for place in range(RECENT_GHOST, 4)]
        entry["co"] = [*lists, *ghosts, host.target]

    def _jobs(self, j: int) -> Iterator[Job]:
        while j != NONE:
            yield self._offloading.jobs[j]
            j = self._offloading.jobs[j].next

    def _blocks(self, job: Job) -> list[int]:
        blocks, b = [], job.first_block
        while b != NONE:
            blocks.append(self._offloading.blocks[b].block)
            b = self._offloading.blocks[b].next
        return blocks

    def _slots(self, job: Job) -> list[int]:
        slots, c = [], job.first_chunk
        while c != NONE:
            slots.append(self._offloading.host.chunks[self._offloading.chunks[c].chunk].slot)
            c = self._offloading.chunks[c].next
        return slots

    def _load(self, job: Job) -> list[Any]:
        row = [job.number, self._names[job.row], self._slots(job), self._blocks(job)]
        return [*row, "sync"] if job.is_sync else row

    def _store(self, job: Job) -> list[Any]:
        return [job.number, self._names[job.row], self._blocks(job), self._slots(job)]


def _held(host: HostCache) -> list[int]:
    """Return the chunks in host memory."""
    made = range(1, host.num_made + 1)
    return [k for k in made if host.chunks[k].slot != NONE]


def _listed(host: HostCache, place: int) -> list[int]:
    """Return the chunks of one of ARC's lists, the next one out first."""
    chunks, k = [], host.lists[place].head
    while k != NONE:
        chunks.append(k)
        k = host.chunks[k].next
    return chunks


def _slots(host: HostCache, chunks: list[int]) -> int:
    return checksum(",".join(str(host.chunks[k].slot) for k in chunks))
