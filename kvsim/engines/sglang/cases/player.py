"""Play a recorded schedule of SGLang: its requests through a replica, pass by pass of its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cases.player import Player, add
from kvsim.engines.sglang.cases.case import contents_of, parts_of
from kvsim.engines.sglang.cases.log import PassLog
from kvsim.engines.sglang.rules.pacing import count_pass, decodes_first
from kvsim.records.engine import COMPLETED, DONE, NEEDS_REQUESTS
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from kvsim.cases.player import Entry
    from kvsim.engines.sglang.cases.case import SglangCase

#: Consecutive passes without a batch after which a case counts as ended.
MOST_EMPTY = 1000
#: Finish reasons of requests that end in the queue, or between two chunks.
LOST = (FinishReason.REJECTED, FinishReason.FAILED, FinishReason.ABORTED)


class SglangPlayer(Player):
    """Plays a case of SGLang. A pass without requests has no log entry."""

    def __init__(self, case: SglangCase, *, compiled: bool) -> None:
        requests = case.workload.requests
        super().__init__(parts_of(case.config), contents_of(requests), compiled=compiled)
        self.state.never_reject = True
        order = sorted(range(len(requests)), key=lambda row: requests[row].arrival)
        self._log = PassLog(self.state, [r.id for r in requests], order)
        self._requests, self._arriving, self._num_empty = requests, order, 0
        self._alive: set[int] = set()
        aborts = [(r.abort_at, row) for row, r in enumerate(requests)]
        self._aborts = sorted((at, row) for at, row in aborts if at is not None)
        self._max_queued = case.config.max_queued_requests

    def has_work(self, step: int) -> bool:
        del step
        is_idle = not self.state.num_batches and self.state.engines.sglang.is_idle
        return bool(self._arriving or self._alive) or not is_idle

    def begin(self, step: int) -> Entry | None:
        entry: Entry = {"s": step}
        if not self.state.engines.sglang.is_deaf:
            due = [row for row in self._arriving if self._requests[row].arrival <= step]
            self._arriving = self._arriving[len(due) :]
            self._alive.update(due)
            add(entry, abr=self._named(self._turned_away(due) + self._aborted(step)))
        return entry

    def _turned_away(self, due: list[int]) -> list[int]:
        """Submit requests one by one, and return the requests that the full queue rejected."""
        if self._max_queued is None:
            self.submit(due, [0.0] * len(due))
            return []
        gone = []
        for row in due:
            self.submit([row], [0.0])
            self._queue_arrivals()
            gone += self._lost()
        return gone

    def _queue_arrivals(self) -> None:
        """Queue the requests that have arrived, and schedule nothing."""
        for stop in self.replica.stops(num_steps=0):
            if stop != NEEDS_REQUESTS:
                break

    def _lost(self) -> list[int]:
        """Return the requests that have ended in the queue, or between chunks, since last time."""
        reasons, is_bounded = self.table["finish_reason"].tolist(), self._max_queued is not None
        # Without a limit of the queue, a failed request ran out of memory: it is logged as ended.
        kinds = LOST if is_bounded else (FinishReason.REJECTED, FinishReason.ABORTED)
        lost = [row for row in sorted(self._alive) if reasons[row] in kinds]
        self._alive.difference_update(lost)
        return [row for row in lost if is_bounded or reasons[row] == FinishReason.ABORTED]

    def _aborted(self, step: int) -> list[int]:
        """Abort the requests that are due to be aborted; return those that ended at once."""
        due = [row for at, row in self._aborts if at <= step]
        self._aborts = self._aborts[len(due) :]
        if due:
            self._queue_arrivals()
        for row in due:
            self.replica.abort(row)
        gone = [row for row in due if row in self._alive and self.table["finish_time"][row] > 0]
        self._alive.difference_update(gone)
        return gone

    def _named(self, rows: list[int]) -> list[str] | None:
        return [self._requests[row].id for row in rows] or None

    def advance(self, entry: Entry) -> bool:
        state, table = self.state, self.table
        stop = self.first_stop()
        if lost := self._named(self._lost()):
            entry["abr"] = entry.get("abr", []) + lost
        self._num_empty = 0 if self._arriving or state.num_batches else self._num_empty + 1
        if self._num_empty > MOST_EMPTY:
            raise RuntimeError(f"SGLang's scheduler makes no progress after pass {entry['s'] + 1}")
        if stop == DONE:
            count_pass(state.engines.sglang)
            decodes_first(state.engines.sglang)
            return "abr" in entry
        has_batch = self._log.scheduled(entry)
        if state.must_complete and self.next_stop() != COMPLETED:
            raise RuntimeError("a pass ends before its output is processed")
        ended = [row for row in self._alive if table["finish_time"][row] > 0]
        self._alive.difference_update(ended)
        self._log.processed(entry, ended)
        if "abr" in entry:
            return True
        return bool(has_batch or ended or state.waiting.length or state.engines.sglang.num_running)
