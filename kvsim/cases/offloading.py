"""Native CPU offloading in a case's log: copies that begin and end, and the host cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cases.connector import FakeWorker
from kvsim.cases.player import checksum, linked
from kvsim.records.host_cache import HOST_LRU, RECENT_GHOST
from kvsim.records.memory import head
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.cases.player import Entry
    from kvsim.records.host_cache import Chunk
    from kvsim.records.offloading import Job, Offloading


class OffloadingLog(FakeWorker):
    """Adds the actions of native offloading to a case's log, without a worker's reports."""

    @property
    def _offloading(self) -> Offloading:
        return self._replica.state.offloading

    def before(self, entry: Entry) -> None:
        del entry

    def report(self) -> None:
        pass

    def scheduled(self, entry: Entry) -> None:
        """Add the copies that began with the step just scheduled. Mutates the entry."""
        offloading, step = self._offloading, self._replica.state.num_calls
        queues = offloading.loads, offloading.stores
        jobs = [job for queue in queues for job in linked(offloading.jobs, queue.head)]
        new = [job for job in jobs if job.step == step]
        loads = [self._load(job) for job in new if job.is_load]
        stores = [self._store(job) for job in new if not job.is_load]
        flushed = [job.number for job in jobs if job.flushed == step]
        for name, rows in (("lj", loads), ("sj", stores), ("fl", flushed)):
            if rows:
                entry[name] = sorted(rows)

    def _ended(self, entry: Entry) -> None:
        """Add the copies that ended with the output just processed. Mutates the entry."""
        offloading = self._offloading
        jobs = head(offloading.reported, offloading.num_reported)
        if jobs:
            entry["jc"] = [offloading.jobs[j].number for j in jobs]
        loads = [offloading.jobs[j] for j in jobs if offloading.jobs[j].is_load]
        received = [self._names[job.row] for job in loads if not job.is_sync]
        if received:
            entry["rcv"] = received

    def processed(self, entry: Entry) -> None:
        """Add ended transfers, requests that wait for KV, and the host cache. Mutates the entry."""
        super().processed(entry)
        self._ended(entry)
        host = self._offloading.host
        entry["cpu"] = [host.num_chunks, host.num_ready, host.num_writing]
        if host.policy == HOST_LRU:
            made = (host.chunks[k] for k in range(1, host.num_made + 1))
            held = (chunk for chunk in made if chunk.slot != NONE)
            entry["co"] = _slots(sorted(held, key=lambda chunk: chunk.rank))
            return
        lists = [host.lists[k] for k in range(4)]  # of ARC, each with its next victim first
        orders = [_slots(linked(host.chunks, one.head)) for one in lists[:RECENT_GHOST]]
        entry["co"] = [*orders, *(one.length for one in lists[RECENT_GHOST:]), host.target]

    def _blocks(self, job: Job) -> list[int]:
        return [one.block for one in linked(self._offloading.blocks, job.first_block)]

    def _slots(self, job: Job) -> list[int]:
        chunks = self._offloading.host.chunks
        return [chunks[c.chunk].slot for c in linked(self._offloading.chunks, job.first_chunk)]

    def _load(self, job: Job) -> list[Any]:
        row = [job.number, self._names[job.row], self._slots(job), self._blocks(job)]
        return [*row, "sync"] if job.is_sync else row

    def _store(self, job: Job) -> list[Any]:
        return [job.number, self._names[job.row], self._blocks(job), self._slots(job)]


def _slots(chunks: Iterable[Chunk]) -> int:
    return checksum(chunk.slot for chunk in chunks)
