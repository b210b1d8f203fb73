"""Log entry of a step: the scheduled requests, their new blocks, and the free blocks.

The fields are those of the recorded vLLM schedules. ``s`` step; ``sch`` [id, tokens] in schedule
order; ``new`` / ``res`` [id, prefix hit, block table per group] of first admissions / of those
after a preemption; ``pre`` preempted; ``nb`` new blocks of running requests; ``cow`` [source, copy]
of blocks in which a hit ends; ``free`` free blocks (or slots); then, after the step's output is
processed, ``fin`` finished; ``r`` / ``w`` running and waiting; ``free2`` free blocks; ``fq`` /
``fql`` checksum of the free queue, and a short queue itself; ``nh`` / ``hc`` number and checksum of
blocks with a key; ``bt`` checksum of all block tables. Allocators without blocks log ``addr`` [id,
start, size] instead. :mod:`kvsim.cases.connector` describes the fields that a connector adds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.cases.player import add, checksum
from kvsim.kv.paged import PagedManager
from kvsim.records.request import FINISHED
from kvsim.rules.batch import batch_at
from kvsim.sched.queue import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.cases.player import Entry
    from kvsim.engine.replica import Replica
    from kvsim.records.engine import Batch
    from kvsim.records.engine import Entry as BatchEntry
    from kvsim.records.kv import KV
    from kvsim.records.request import Request

#: A waiting queue longer than this is logged by its length.
MOST_WAITING = 64
#: A free queue longer than this is logged only by its checksum.
MOST_FREE = 40


def copied_blocks(kv: KV) -> list[list[int]]:
    """Return source and copy of the states and blocks copied in a step, group by group."""
    states = kv.states
    pairs = [
        (states.copy_groups[k], states.copies.blocks[2 * k + 1], states.copies.blocks[2 * k])
        for k in range(states.num_copies)
    ]
    return [[source, copy] for _, source, copy in sorted(pairs, key=lambda pair: pair[0])]


class StepLog:
    """Turns the steps of a replica into log entries.

    Parameters
    ----------
    replica : the replica to log
    names : name of each request_id in the log
    summary : keep counts and checksums instead of names
    """

    def __init__(
        self, replica: Replica, names: Mapping[int, str | int], *, summary: bool = False
    ) -> None:
        self._replica = replica
        self._state = replica.state
        self._names = names
        self._summary = summary
        self._lengths: dict[int, list[int]] = {}  # blocks per group, before the step

    def before(self) -> None:
        """Record the state before a step is scheduled."""
        if not self._summary:
            self._lengths = {
                request.request_id: [len(table) for table in self._tables(request)]
                for request in self._running()
            }

    def scheduled(self, entry: Entry) -> None:
        """Add the decisions of the step just scheduled. Mutates the entry."""
        state = self._state
        preempted = [self._name(state.preempted[k]) for k in range(state.num_preempted)]
        rows = self._entries(batch_at(state, state.num_batches - 1)) if state.num_batches else []
        add(
            entry,
            sch=self._schedule(rows),
            new=self._admitted(resumed=False) or None,
            res=self._admitted(resumed=True) or None,
            pre=preempted or None,
            nb=None if self._summary else self._new_blocks(rows) or None,
            ks=state.num_next_drafts if state.limits.num_draft_rows else None,
            sd=self._counts("num_drafts", rows) if state.num_batches else None,
            cow=copied_blocks(state.kv) if state.kv.has_states else None,
            free=self._replica.kv.num_free,
        )

    def completed(self, entry: Entry) -> None:
        """Add the results of the step that was just processed. Mutates the entry."""
        state = self._state
        rows = self._entries(state.batches[(state.first_batch - 1) % (state.limits.depth + 1)])
        requests = [state.requests[row.request] for row in rows]
        ended = [r for r in requests if r.status == FINISHED and r.finish_time == state.clock]
        finished = [self._names[request.request_id] for request in ended]
        add(entry, fin=finished or None, acc=self._counts("num_accepted", rows))

    def processed(self, entry: Entry) -> None:
        """Add the state after the step. Mutates the entry."""
        requests, waiting = self._running(), WaitingQueue(self._state)
        running = [self._names[request.request_id] for request in requests]
        by_name = not self._summary and len(waiting) <= MOST_WAITING
        add(
            entry,
            r=len(running) if self._summary else running,
            w=[self._names[r.request_id] for r in waiting] if by_name else len(waiting),
            free2=self._replica.kv.num_free,
        )
        if isinstance(self._replica.kv, PagedManager):
            self._blocks(entry, self._replica.kv)
        else:
            self._addresses(entry)

    def _blocks(self, entry: Entry, kv: PagedManager) -> None:
        free, hashed = list(kv.pool.free_queue()), kv.pool.hashed_blocks()
        rows = (
            f"{self._names[request.request_id]}:{request.num_computed_tokens}:"
            + "|".join(",".join(map(str, table)) for table in self._tables(request))
            for request in self._running()
        )
        add(
            entry,
            fq=checksum(free),
            fql=None if self._summary or len(free) > MOST_FREE else free,
            nh=len(hashed),
            hc=checksum(hashed),
            bt=checksum(rows, ";"),
        )

    def _addresses(self, entry: Entry) -> None:
        kv = self._replica.kv
        places = [(self._names[r.request_id], kv.address(r)) for r in self._running()]
        rows = [[name, *place] for name, place in places if place is not None]
        if rows:
            texts = (":".join(map(str, row)) for row in rows)
            entry["addr"] = checksum(texts, ";") if self._summary else rows

    def _running(self) -> list[Request]:
        state = self._state
        return [state.requests[state.running[k]] for k in range(state.num_running)]

    def _entries(self, batch: Batch) -> list[BatchEntry]:
        return [batch.entries[at] for at in range(batch.size)]

    def _schedule(self, scheduled: list[BatchEntry]) -> list[Any]:
        rows = [[self._name(one.request), one.num_tokens] for one in scheduled]
        if not self._summary:
            return rows
        num_tokens = sum(one.num_tokens for one in scheduled)
        return [len(rows), num_tokens, checksum(f"{name}:{tokens}" for name, tokens in rows)]

    def _admitted(self, *, resumed: bool) -> list[list[Any]]:
        state, rows = self._state, []
        for k in range(state.num_admitted):
            admission = state.admissions[k]
            if admission.resumed == resumed:
                tables = self._tables(state.requests[admission.request])
                row: list[Any] = [self._name(admission.request), admission.hit]
                rows.append(row if self._summary else [*row, [list(table) for table in tables]])
        return rows

    def _new_blocks(self, scheduled: list[BatchEntry]) -> dict[str | int, list[list[int]]]:
        state = self._state
        admitted = {state.admissions[k].request for k in range(state.num_admitted)}
        blocks = {}
        for one in scheduled:
            if one.request in admitted:
                continue
            request = state.requests[one.request]
            tables = self._tables(request)
            # A request that has just been swapped in had no blocks: all its blocks are new.
            lengths = self._lengths.get(request.request_id, [0] * len(tables))
            new = [list(t[length:]) for t, length in zip(tables, lengths, strict=True)]
            if any(new):
                blocks[self._name(one.request)] = new
        return blocks

    def _counts(self, field: str, rows: list[BatchEntry]) -> dict[str | int, int] | None:
        """Return a count of drafts by request, None without drafts."""
        if not self._state.limits.num_drafts:
            return None
        return {self._name(one.request): getattr(one, field) for one in rows if one.num_drafts}

    def _name(self, k: int) -> str | int:
        return self._names[self._state.requests[k].request_id]

    def _tables(self, request: Request) -> list[list[int]]:
        return self._replica.kv.block_ids(request)
