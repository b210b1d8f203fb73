"""The history of a block pool, observed as differences between steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.history.block_tables import live, tables_of
from kvsim.engine.history.block_watch import (
    ALLOC,
    COPY,
    EVICT,
    FREE,
    HIT,
    LOAD,
    RECV,
    REF_ADD,
    REF_DROP,
    SEND,
    STORE,
    Watch,
)
from kvsim.records.connector import NO_CONNECTOR, OFFLOADING
from kvsim.records.kv import FORKED
from kvsim.records.paged import FULL, NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED, WAITING_FOR_REMOTE_KVS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.engine.history.block_watch import Change
    from kvsim.records.engine import Replica


class PoolWatch(Watch):
    """The last observed state of a block pool: block tables, and keys of full blocks."""

    def __init__(self, state: Replica) -> None:
        super().__init__(state)
        kv = state.kv
        groups = [kv.groups[g] for g in range(kv.num_groups)]
        self.sizes = [group.block_size for group in groups]
        #: True if tables only grow: no block becomes null, and no block is copied before a write.
        self.only_grows = kv.manager != FORKED and all(g.kind == FULL for g in groups)
        self.moves = state.connector.kind != NO_CONNECTOR
        self.tables = tables_of(state)
        self.num_held, self.num_hashed = live(kv, "num_held"), live(kv.pool, "num_hashed")
        self.held_before = self.hashed_before = self.entries_before = 0
        self.entries = [live(group, "num_table_blocks") for group in groups]
        self.rows = np.zeros(0, np.int64)  # trace rows, by RequestBlocks record
        self.lengths = self.tables.lengths()[:0]
        self.blocks: list[list[list[int]]] = []  # by record and table
        self.keys = np.zeros(kv.pool.num_usable + 1, np.int64)
        self.refs = [0] * (kv.pool.num_usable + 1)
        self.sent: set[int] = set()  # ended requests with blocks pinned for a reader
        self.is_tiered = kv.pool.host.num_blocks > 0
        self.copies = state.connector.kind == OFFLOADING
        self.jobs: set[int] = set()  # copies in progress

    def see(self, events: list[Change], admitted: dict[int, int], *, scheduled: bool) -> None:
        """Append the blocks that tables lost or gained, and the keys that blocks gained or lost."""
        if scheduled or self._has_ended():
            self._record_tables(events, admitted)
        if self.copies:
            self._record_copies(events)

    def _has_ended(self) -> bool:
        """Return True if the end of a step may have changed owners or keys of blocks."""
        counts = self.num_held(), self.num_hashed()
        return self.moves or counts != (self.held_before, self.hashed_before)

    def _record_tables(self, events: list[Change], admitted: dict[int, int]) -> None:
        """Record the blocks that tables lost or gained; growing tables are read at their ends."""
        counts = self.num_held(), sum(one() for one in self.entries), self.num_hashed()
        same = self.only_grows and not (admitted or self.moves) and counts[0] == self.held_before
        if same and counts == (self.held_before, self.entries_before, self.hashed_before):
            return
        rows = self.rows if same else self.tables.rows()
        lengths = self.tables.lengths()
        if not same:
            self._make_room(len(rows) - len(self.blocks), lengths)
        drops, takes = self._read_request_blocks(rows, lengths, events, admitted, same=same)
        self.rows, self.lengths = rows, lengths
        hashed_before = self.hashed_before
        self.held_before, self.entries_before, self.hashed_before = counts
        if drops or takes or self.hashed_before != hashed_before:
            self._tell(drops, takes, events, admitted)
        if self.moves:
            self._record_sent(rows.tolist(), events)

    def _read_request_blocks(
        self,
        rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        events: list[Change],
        admitted: dict[int, int],
        *,
        same: bool,
    ) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int, int]]]:
        """Return the blocks that requests lost and gained; ``same`` if no record changed owner."""
        moved = np.zeros(len(rows), np.bool_) if same else rows != self.rows
        seen = (lengths != self.lengths).any(axis=1) if self.only_grows else rows != NONE
        if self.only_grows and not same:
            seen &= rows != NONE  # an unused record has the blocks that a look-up found
        drops: list[tuple[int, int, int]] = []
        takes: list[tuple[int, int, int, int]] = []
        for h in np.flatnonzero(moved | seen).tolist():
            row = int(rows[h])
            if self.only_grows and not moved[h]:
                self._record_growth(h, row, lengths[h].tolist(), takes)
                continue
            self._read_own_blocks(h, row, lengths[h].tolist(), drops, takes, same=not moved[h])
            if self.moves and moved[h] and row != NONE and row not in admitted:
                self._record_transfer(h, row, events)
        return drops, takes

    def _make_room(self, count: int, lengths: NDArray[np.int64]) -> None:
        """Make entries for RequestBlocks records that are new since the last observation."""
        if count:
            self.blocks += [[] for _ in range(count)]
            self.rows = np.append(self.rows, [NONE] * count)
            self.lengths = np.concatenate([self.lengths, np.zeros_like(lengths[:count])])

    def _tell(
        self,
        drops: list[tuple[int, int, int]],
        takes: list[tuple[int, int, int, int]],
        events: list[Change],
        admitted: dict[int, int],
    ) -> None:
        """Append events for lost and gained blocks, in the order of the rules."""
        before, after, refs = self.keys, self.tables.keys(), self.refs
        for row, block, place in drops:
            refs[block] -= 1
            events.append((REF_DROP if refs[block] else FREE, row, block, place, 0))
        changed = np.flatnonzero(before != after).tolist()
        events += [(EVICT, -1, b, -1, int(before[b])) for b in changed if before[b]]
        for row, block, place, start in takes:
            key = int(after[block])
            reused = key != 0 and key == before[block] and start < admitted.get(row, start + 1)
            kind = HIT if reused else REF_ADD if refs[block] else ALLOC
            refs[block] += 1
            events.append((kind, row, block, place, key if reused else 0))
            if self.is_tiered and not reused and start < admitted.get(row, 0):
                events.append((LOAD, -1, block, -1, key))
        events += [(STORE, -1, b, -1, int(after[b])) for b in changed if after[b]]
        self.keys = after

    def _record_growth(self, h: int, row: int, lengths: list[int], takes: list[Any]) -> None:
        """Append the new blocks at the ends of the tables of a RequestBlocks record."""
        first = 0
        for t, stop in enumerate(lengths):
            blocks, size = self.blocks[h][t], self.sizes[t]
            start = len(blocks)
            new = self.tables.blocks(h, t, start, stop)
            takes += [(row, b, first + p, p * size) for p, b in enumerate(new, start)]
            blocks += new
            first += stop

    def _read_own_blocks(
        self,
        h: int,
        row: int,
        lengths: list[int],
        drops: list[Any],
        takes: list[Any],
        *,
        same: bool,
    ) -> None:
        """Append the blocks that a RequestBlocks record lost and gained."""
        old, new, first = self.blocks[h], [], 0
        if row != NONE:
            count = self.tables.num_tables(h)
            new = [self.tables.blocks(h, t, 0, lengths[t]) for t in range(count)]
        for t in range(max(len(old), len(new))):
            was, now = old[t] if t < len(old) else [], new[t] if t < len(new) else []
            size = self.sizes[t if t < len(self.sizes) else 0]
            stays = {p for p, (a, b) in enumerate(zip(was, now, strict=False)) if same and a == b}
            drops += [
                (int(self.rows[h]), was[place], first + place)
                for place in range(len(was) - 1, -1, -1)
                if was[place] != NULL_BLOCK and place not in stays
            ]
            takes += [
                (row, block, first + place, place * size)
                for place, block in enumerate(now)
                if block != NULL_BLOCK and place not in stays
            ]
            first += max(len(was), len(now))
        self.blocks[h] = new

    # -- transfers ---------------------------------------------------------------------------------

    def _record_copies(self, events: list[Change]) -> None:
        """Record source and target blocks of copies started since the last observation."""
        offloading, now = self.state.offloading, set()
        for queue, kind in ((offloading.loads, LOAD), (offloading.stores, COPY)):
            j = queue.head
            while j != NONE:
                job = offloading.jobs[j]
                now.add(job.number)
                b = job.first_block if job.number not in self.jobs else NONE
                while b != NONE:
                    entry = offloading.blocks[b]
                    events.append((kind, -1, entry.block, -1, int(self.keys[entry.block])))
                    b = entry.next
                j = job.next
        self.jobs = now

    def _record_transfer(self, h: int, row: int, events: list[Change]) -> None:
        request = self.state.requests[self.state.kv.request_blocks[h].request]
        if request.status == WAITING_FOR_REMOTE_KVS:
            events.append((RECV, row, -1, -1, 0))

    def _record_sent(self, rows: list[int], events: list[Change]) -> None:
        """Record ended requests with blocks that stay pinned until another replica reads them."""
        request_blocks, requests = self.state.kv.request_blocks, self.state.requests
        for h, row in enumerate(rows):
            if row == NONE or row in self.sent:
                continue
            if requests[request_blocks[h].request].status == FINISHED:
                events.append((SEND, row, -1, -1, 0))
                self.sent.add(row)
