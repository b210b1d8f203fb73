"""What a step leaves in a log: who was scheduled, which blocks they got, what is left.

The fields are those of the recorded vLLM schedules. ``s`` step; ``sch`` [id, tokens] in schedule
order; ``new`` / ``res`` [id, prefix hit, block table per group] of admissions, first or after a
preemption; ``pre`` preempted; ``nb`` new blocks of running requests; ``cow`` [source, copy] of
blocks in which a hit ends; ``free`` free blocks (or slots); then, after the step's output is
processed, ``fin`` finished; ``r`` / ``w`` running and waiting; ``free2``; ``fq`` / ``fql`` checksum
of the free queue, and the queue while short; ``nh`` / ``hc`` number and checksum of blocks with a
key; ``bt`` checksum of all block tables. Allocators without blocks log ``addr`` [id, start, size]
instead. What a connector adds is in :mod:`kvsim.cases.connector`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from kvsim.cases.encoder import EncoderLog
from kvsim.cases.events import EventLog
from kvsim.kv.paged import PagedManager
from kvsim.records.request import FINISHED
from kvsim.rules.batch import batch_at
from kvsim.sched.queue import WaitingQueue

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsim.cases.events import EventNames
    from kvsim.engine.replica import Replica
    from kvsim.records.engine import Batch
    from kvsim.records.kv import KV
    from kvsim.records.request import Request

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
    replica : the replica, after each of its steps
    names : request_id to the name in the log
    summary : keep counts and checksums instead of names
    hashes : of the contents that an encoder computes, by number
    events : names of what KV cache events tell, None if there are none
    """

    def __init__(
        self,
        replica: Replica,
        names: Mapping[int, str | int],
        *,
        summary: bool = False,
        hashes: Sequence[str] = (),
        events: EventNames | None = None,
    ) -> None:
        self._replica = replica
        self._state = replica.state
        self._names = names
        self._summary = summary
        has_encoder = replica.state.limits.has_encoder
        self._encoder = EncoderLog(replica.state, hashes) if has_encoder else None
        self._events = None if events is None else EventLog(replica, events)
        self._lengths: dict[int, list[int]] = {}  # blocks per group, before the step

    def before(self) -> None:
        """Note the state before a step is scheduled."""
        if not self._summary:
            self._lengths = {
                request.request_id: [len(table) for table in self._tables(request)]
                for request in self._running()
            }

    def scheduled(self, entry: Entry) -> None:
        """Add what was decided in the step just scheduled. Mutates the entry."""
        state = self._state
        rows = self._scheduled()
        entry["sch"] = self._schedule(rows)
        for k in range(state.num_admitted):
            admission = state.admissions[k]
            request = state.requests[admission.request]
            row: list[Any] = [self._name(request), admission.hit]
            if not self._summary:
                row.append([list(table) for table in self._tables(request)])
            entry.setdefault("res" if admission.resumed else "new", []).append(row)
        if state.num_preempted:
            preempted = [state.preempted[k] for k in range(state.num_preempted)]
            entry["pre"] = [self._name(state.requests[place]) for place in preempted]
        if not self._summary:
            blocks = self._new_blocks(rows)
            if blocks:
                entry["nb"] = blocks
        self._drafts(entry)
        if state.kv.has_states:
            entry["cow"] = copied_blocks(state.kv)
        if self._encoder is not None:
            self._encoder.scheduled(entry, self._name)
        entry["free"] = self._replica.kv.num_free

    def _drafts(self, entry: Entry) -> None:
        """Add the drafts of the step just scheduled, and how many come after it."""
        state = self._state
        if not state.limits.num_drafts:
            return
        if state.limits.num_draft_rows:
            entry["ks"] = state.num_next_drafts
        if state.num_batches:
            batch = batch_at(state, state.num_batches - 1)
            entry["sd"] = self._counts(batch, "num_drafts")

    def _counts(self, batch: Batch, field: str) -> dict[str | int, int]:
        entries = [batch.entries[at] for at in range(batch.size)]
        return {
            self._name(self._state.requests[one.request]): getattr(one, field)
            for one in entries
            if one.num_drafts
        }

    def accepted(self, entry: Entry) -> None:
        """Add how many drafts of the step just taken in were accepted."""
        state = self._state
        if state.limits.num_drafts:
            batch = state.batches[(state.first_batch - 1) % (state.limits.depth + 1)]
            entry["acc"] = self._counts(batch, "num_accepted")

    def finished(self) -> list[str | int]:
        """Return who ended with the step whose output was taken in just now, in its order."""
        state = self._state
        batch = state.batches[(state.first_batch - 1) % (state.limits.depth + 1)]
        places = [batch.entries[at].request for at in range(batch.size)]
        ended = [state.requests[place] for place in places]
        return [
            self._name(r) for r in ended if r.status == FINISHED and r.finish_time == state.clock
        ]

    def processed(self, entry: Entry, finished: list[str | int]) -> None:
        """Add who has ended and the state afterwards. Mutates the entry."""
        if finished:
            entry["fin"] = finished
        running, waiting = self._running(), WaitingQueue(self._state)
        entry["r"], entry["w"] = len(running), len(waiting)
        if not self._summary:
            entry["r"] = [self._name(request) for request in running]
            if len(waiting) <= MOST_WAITING:
                entry["w"] = [self._name(request) for request in waiting]
        kv = self._replica.kv
        entry["free2"] = kv.num_free
        if self._encoder is not None:
            self._encoder.processed(entry)
        if self._events is not None:
            self._events.processed(entry)
        if isinstance(kv, PagedManager):
            self._blocks(entry, kv)
        else:
            self._addresses(entry)

    def _blocks(self, entry: Entry, kv: PagedManager) -> None:
        free = list(kv.pool.free_queue())
        entry["fq"] = checksum(_joined(free))
        if not self._summary and len(free) <= MOST_FREE:
            entry["fql"] = free
        hashed = kv.pool.hashed_blocks()
        entry["nh"], entry["hc"] = len(hashed), checksum(_joined(hashed))
        rows = (
            f"{self._name(request)}:{request.num_computed_tokens}:"
            + "|".join(_joined(table) for table in self._tables(request))
            for request in self._running()
        )
        entry["bt"] = checksum(";".join(rows))

    def _addresses(self, entry: Entry) -> None:
        kv = self._replica.kv
        places = [(self._name(r), kv.address(r)) for r in self._running()]
        rows = [[name, *place] for name, place in places if place is not None]
        if rows and self._summary:
            entry["addr"] = checksum(";".join(":".join(map(str, row)) for row in rows))
        elif rows:
            entry["addr"] = rows

    def _running(self) -> list[Request]:
        state = self._state
        return [state.requests[state.running[k]] for k in range(state.num_running)]

    def _scheduled(self) -> list[tuple[Request, int]]:
        state = self._state
        if not state.num_batches:  # nothing was scheduled, and nothing is under way
            return []
        batch = batch_at(state, state.num_batches - 1)
        entries = [batch.entries[at] for at in range(batch.size)]
        return [(state.requests[entry.request], entry.num_tokens) for entry in entries]

    def _schedule(self, scheduled: list[tuple[Request, int]]) -> list[Any]:
        rows = [[self._name(request), tokens] for request, tokens in scheduled]
        if not self._summary:
            return rows
        text = ",".join(f"{name}:{tokens}" for name, tokens in rows)
        return [len(rows), sum(tokens for _, tokens in scheduled), checksum(text)]

    def _new_blocks(self, scheduled: list[tuple[Request, int]]) -> dict[str | int, list[list[int]]]:
        state = self._state
        admitted = {state.admissions[k].request for k in range(state.num_admitted)}
        blocks = {}
        for request, _ in scheduled:
            if request.place in admitted:
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
        return self._replica.kv.block_ids(request)
