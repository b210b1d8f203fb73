"""What a step leaves in a log: who was scheduled, which blocks they got, what is left.

The fields are those of the recorded vLLM schedules. ``s`` step; ``sch`` [id, tokens] in schedule
order; ``new`` / ``res`` [id, prefix hit, block table per group] of admissions, first or after a
preemption; ``pre`` preempted; ``nb`` new blocks of running requests; ``free`` free blocks (or
slots); then, after the step's output is processed, ``fin`` finished; ``r`` / ``w`` running and
waiting; ``free2``; ``fq`` / ``fql`` checksum of the free queue, and the queue while short; ``nh`` /
``hc`` number and checksum of blocks with a key; ``bt`` checksum of all block tables. Allocators
without blocks log ``addr`` [id, start, size] instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from kvsim.kv.paged import PagedManager

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvsim.records.request import Request
    from kvsim.sched.scheduler import Scheduler, StepOutput, StepPlan

#: A waiting queue longer than this is logged by its length.
MOST_WAITING = 64
#: A free queue longer than this is logged by its checksum alone.
MOST_FREE = 40

Entry = dict[str, Any]


def checksum(text: str) -> int:
    """CRC-32 of a text, 0 of the empty one."""
    return crc32(text.encode())


def _joined(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


class StepLog:
    """Turns the steps of a scheduler into log entries.

    Parameters
    ----------
    scheduler : the scheduler, with its KV-cache manager
    names : request_id to the name in the log
    summary : keep counts and checksums instead of names
    """

    def __init__(
        self, scheduler: Scheduler, names: Mapping[int, str | int], *, summary: bool = False
    ) -> None:
        self._scheduler = scheduler
        self._names = names
        self._summary = summary
        self._lengths: dict[int, list[int]] = {}  # blocks per group, before the step

    def before(self) -> None:
        """Note the state before a step is scheduled."""
        if not self._summary:
            self._lengths = {
                request.request_id: [len(table) for table in self._tables(request)]
                for request in self._scheduler.running
            }

    def scheduled(self, entry: Entry, plan: StepPlan) -> None:
        """Add what was decided. Mutates the entry."""
        entry["sch"] = self._schedule(plan)
        for request, hit, resumed in plan.admitted:
            row: list[Any] = [self._name(request), hit.num_tokens]
            if not self._summary:
                row.append([list(table) for table in self._tables(request)])
            entry.setdefault("res" if resumed else "new", []).append(row)
        if plan.preempted:
            entry["pre"] = [self._name(request) for request in plan.preempted]
        if not self._summary:
            blocks = self._new_blocks(plan)
            if blocks:
                entry["nb"] = blocks
        entry["free"] = self._num_free()

    def processed(self, entry: Entry, output: StepOutput | None) -> None:
        """Add who has ended and the state afterwards. Mutates the entry."""
        if output is not None and output.finished:
            entry["fin"] = [self._name(request) for request in output.finished]
        scheduler = self._scheduler
        running, waiting = len(scheduler.running), len(scheduler.waiting)
        entry["r"], entry["w"] = running, waiting
        if not self._summary:
            entry["r"] = [self._name(request) for request in scheduler.running]
            if waiting <= MOST_WAITING:
                entry["w"] = [self._name(request) for request in scheduler.waiting]
        entry["free2"] = self._num_free()
        kv = scheduler.kv
        if isinstance(kv, PagedManager):
            self._blocks(entry, kv)
        else:
            self._addresses(entry)

    def _blocks(self, entry: Entry, kv: PagedManager) -> None:
        free = list(kv.pool.free_queue())
        entry["fq"] = checksum(_joined(free))
        if not self._summary and len(free) <= MOST_FREE:
            entry["fql"] = free
        hashed = sorted(kv.pool.hashed_blocks())
        entry["nh"], entry["hc"] = len(hashed), checksum(_joined(hashed))
        rows = (
            f"{self._name(request)}:{request.num_computed_tokens}:"
            + "|".join(_joined(table) for table in self._tables(request))
            for request in self._scheduler.running
        )
        entry["bt"] = checksum(";".join(rows))

    def _addresses(self, entry: Entry) -> None:
        kv = self._scheduler.kv
        places = [(self._name(r), kv.address(r)) for r in self._scheduler.running]
        rows = [[name, *place] for name, place in places if place is not None]
        if rows and self._summary:
            entry["addr"] = checksum(";".join(":".join(map(str, row)) for row in rows))
        elif rows:
            entry["addr"] = rows

    def _schedule(self, plan: StepPlan) -> list[Any]:
        rows = [
            [self._name(request), tokens]
            for request, tokens in zip(plan.requests, plan.num_tokens, strict=True)
        ]
        if not self._summary:
            return rows
        text = ",".join(f"{name}:{tokens}" for name, tokens in rows)
        return [len(rows), sum(plan.num_tokens), checksum(text)]

    def _new_blocks(self, plan: StepPlan) -> dict[str | int, list[list[int]]]:
        admitted = {admission.request.request_id for admission in plan.admitted}
        blocks = {}
        for request in plan.requests:
            if request.request_id in admitted:
                continue
            tables = self._tables(request)
            # Who has just come back from the host had none: all its blocks are new.
            lengths = self._lengths.get(request.request_id, [0] * len(tables))
            new = [list(t[length:]) for t, length in zip(tables, lengths, strict=True)]
            if any(new):
                blocks[self._name(request)] = new
        return blocks

    def _name(self, request: Request) -> str | int:
        return self._names[request.request_id]

    def _tables(self, request: Request) -> list[list[int]]:
        return self._scheduler.kv.block_ids(request)

    def _num_free(self) -> int:
        return self._scheduler.kv.num_free
