"""Play a recorded schedule of SGLang: its requests through a replica, pass by pass of its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cases.player import Player
from kvsim.engines.sglang.cases.case import contents_of, parts_of
from kvsim.engines.sglang.cases.log import PassLog
from kvsim.records.engine import COMPLETED, DONE
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from kvsim.cases.player import Entry
    from kvsim.engines.sglang.cases.case import SglangCase

#: Consecutive passes without a batch after which a case counts as ended.
MOST_EMPTY = 1000


class SglangPlayer(Player):
    """Plays a case of SGLang. A pass without requests leaves no entry."""

    def __init__(self, case: SglangCase, *, compiled: bool) -> None:
        requests = case.workload.requests
        super().__init__(parts_of(case.config), contents_of(requests), compiled=compiled)
        self.state.never_reject = True
        order = sorted(range(len(requests)), key=lambda row: requests[row].arrival)
        self._log = PassLog(self.state, [r.id for r in requests], order)
        self._requests, self._arriving, self._num_empty = requests, order, 0
        self._alive: set[int] = set()

    def has_work(self, step: int) -> bool:
        del step
        is_idle = not self.state.num_batches and self.state.engines.sglang.is_idle
        return bool(self._arriving or self._alive) or not is_idle

    def begin(self, step: int) -> Entry | None:
        due = [row for row in self._arriving if self._requests[row].arrival <= step]
        self._arriving = self._arriving[len(due) :]
        self._alive.update(due)
        self.submit(due, [0.0] * len(due))
        return {"s": step}

    def advance(self, entry: Entry) -> bool:
        state, table = self.state, self.table
        stop = self.first_stop()
        rejected = table["finish_reason"] == FinishReason.REJECTED
        self._alive = {row for row in self._alive if not rejected[row]}
        self._num_empty = 0 if self._arriving or state.num_batches else self._num_empty + 1
        if self._num_empty > MOST_EMPTY:
            raise RuntimeError(f"SGLang's scheduler makes no progress after pass {entry['s'] + 1}")
        if stop == DONE:
            return False
        has_batch = self._log.scheduled(entry)
        if state.must_complete and self.next_stop() != COMPLETED:
            raise RuntimeError("a pass ends before its output is processed")
        ended = [row for row in self._alive if table["finish_time"][row] > 0]
        self._alive.difference_update(ended)
        self._log.processed(entry, ended)
        return bool(has_batch or ended or state.waiting.length or state.engines.sglang.num_running)
