"""The connector of a case: a worker that loads and sends in a set number of steps, or fails."""

from __future__ import annotations

from collections import deque
from itertools import chain, dropwhile
from typing import TYPE_CHECKING, Any

from kvsim.cases.player import Feature, linked
from kvsim.cases.rows import num_tokens
from kvsim.cases.transfer import Transfer
from kvsim.records.connector import STARTED
from kvsim.records.memory import head
from kvsim.records.paged import NULL_BLOCK
from kvsim.records.record import NONE
from kvsim.records.request import WAITING_FOR_REMOTE_KVS
from kvsim.rules.engine import has_work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.cases.case import CaseRequest, Workload
    from kvsim.cases.player import Entry
    from kvsim.engine.replica import Replica
    from kvsim.records import engine
    from kvsim.records.connector import Connector
    from kvsim.records.request import Request

Job = tuple[int, int]  # the first step whose output reports it, and its row


def held_names(state: engine.Replica, names: Mapping[int, str | int]) -> list[str | int]:
    """Return the names of the requests that hold blocks while they wait for KV."""
    held = linked(state.requests, state.connector.waiting_for_kv.head)
    return [names[request.request_id] for request in held]


class FakeWorker(Feature):
    """Offers KV to the requests of a case, and reports ended transfers, step by step.

    Parameters
    ----------
    replica : replica with a connector
    workload : the requests, by row
    names : name of each row in the log
    """

    def __init__(
        self, replica: Replica, workload: Workload, names: Mapping[int, str | int]
    ) -> None:
        self._replica, self._names = replica, names
        self._rows = {name: row for row, name in names.items()}
        self._given = [request.kv or Transfer() for request in workload.requests]
        self._steps: deque[int] = deque()  # step of each batch in progress
        self._loads: list[Job] = []
        self._sync_loads: list[Job] = []
        self._sends: list[Job] = []
        self._unsent: list[int] = []  # rows that ended since the last schedule
        self._reported: Entry = {}
        connector = self._connector
        for row, request in enumerate(workload.requests):
            self._offer(connector, row, request)

    @property
    def _connector(self) -> Connector:
        return self._replica.state.connector

    def _offer(self, connector: Connector, row: int, request: CaseRequest) -> None:
        kv = self._given[row]
        prompt = num_tokens(request.segments)
        if kv.remote_prefill:
            connector.offered[row] = prompt - kv.sync
        elif kv.ext_tokens is not None:
            connector.offered[row] = min(kv.ext_tokens, prompt - kv.sync)
        connector.is_sync[row] = int(kv.sync)
        connector.num_unknown[row] = kv.unknown
        connector.keeps[row] = int(kv.remote_decode)

    def before(self, entry: Entry) -> None:
        """Report transfers with the output of the oldest batch, if it is processed next."""
        state = self._replica.state
        if state.num_batches == 0 or state.trace.next < state.trace.num_arrivals:
            return
        if state.must_complete or not has_work(state):
            self.report()

    def scheduled(self, entry: Entry) -> None:
        """Start the loads of a step, and the sends of requests that ended before it."""
        step = entry["s"]
        state, connector = self._replica.state, self._connector
        if len(self._steps) < state.num_batches:  # an empty step may have no batch
            self._steps.append(step)
        for at in range(connector.num_loads):
            request = state.requests[connector.loads[at]]
            if request.status != WAITING_FOR_REMOTE_KVS:
                self._sync_loads.append((step, request.request_id))
                continue
            row, computed = request.request_id, request.num_computed_tokens
            tables = self._tables(request)
            entry.setdefault("ld", []).append([self._names[row], computed, tables])
            self._loads.append((step + self._given[row].load_steps, row))
        self._sends += [(step + self._given[row].send_steps, row) for row in self._unsent]
        self._unsent = []

    def report(self) -> None:
        connector, step = self._connector, self._steps.popleft()
        self._loads, received = _due(self._loads, step)
        self._sends, sent = _due(self._sends, step)
        self._sync_loads, there = _due(self._sync_loads, step)
        bad: list[int] = []
        failed: list[int] = []
        for row in received + there:
            given = self._given[row]
            if given.fail_from_block is not None:
                bad += self._table(row)[given.fail_from_block :]
            if given.fail_request and row in received:
                failed.append(row)
        connector.num_received = _fill(connector.received, received)
        connector.num_sent = _fill(connector.sent, sent)
        connector.num_bad_blocks = _fill(connector.bad_blocks, list(dict.fromkeys(bad)))
        connector.num_bad_requests = _fill(connector.bad_requests, failed)
        named = {"rcv": received, "snt": sent, "bad_req": failed}
        self._reported = {key: [self._names[row] for row in rows] for key, rows in named.items()}
        self._reported["bad"] = bad

    def processed(self, entry: Entry) -> None:
        """Add ended transfers, requests that wait for KV, and blocks that wait for a step."""
        connector = self._connector
        given = {
            **self._reported,
            "h": held_names(self._replica.state, self._names),
            "df": self._fenced(),
        }
        entry.update({key: value for key, value in given.items() if value})
        self._reported = {}
        ended = [self._rows[name] for name in entry.get("fin", ())]
        self._unsent += [
            row for row in ended if connector.is_pinned[row] and connector.load[row] != STARTED
        ]

    def _table(self, row: int) -> list[int]:
        """Return the first block table of the request of a row; empty once it is freed."""
        requests = self._replica.state.requests
        tables = [self._tables(r)[0] for r in requests if r.request_id == row and r.own_blocks >= 0]
        return tables[0] if tables else []

    def _tables(self, request: Request) -> list[list[int]]:
        return [list(table) for table in self._replica.kv.block_ids(request)]

    def _fenced(self) -> list[Any]:
        connector, kv = self._connector, self._replica.state.kv
        rows: list[Any] = []
        first = 0
        for at in range(connector.num_fenced):
            own_blocks, stop = connector.fenced[at], first + 2 * connector.num_copies[at]
            if own_blocks == NONE:
                blocks = head(connector.copies.blocks, stop)[first:]
                first = stop
            else:  # the list omits null blocks at the start of a table, but not later ones
                tables = kv.request_blocks[own_blocks].tables
                kept = [
                    dropwhile(lambda b: b == NULL_BLOCK, head(t.blocks, t.length)) for t in tables
                ]
                blocks = [*chain.from_iterable(kept)]
            rows.append([connector.fences[at], blocks])
        return rows


def _due(jobs: list[Job], step: int) -> tuple[list[Job], list[int]]:
    """Return the jobs in flight, and the rows of ended jobs."""
    later = [job for job in jobs if job[0] > step]
    return later, [row for first, row in jobs if first <= step]


def _fill(numbers: Any, values: list[int]) -> int:
    for place, value in enumerate(values):
        numbers[place] = value
    return len(values)
