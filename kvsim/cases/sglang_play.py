"""Play a recorded schedule of SGLang: its requests through a replica, pass by pass of its loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.cases.sglang import contents_of, parts_of
from kvsim.cases.sglang_log import PassLog
from kvsim.engine.refusal import check_compiled
from kvsim.engine.replica import Replica
from kvsim.records.engine import COMPLETED, DONE, SCHEDULED
from kvsim.results.tables import REQUESTS, FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.cases.sglang import SglangCase

#: A case counts passes, not seconds: its clock stands after every arrival.
AFTER_ALL_ARRIVALS = 1e12
#: Passes without a batch after which nothing will come any more.
MOST_EMPTY = 1000
REJECTED = int(FinishReason.REJECTED)
STOPS = (DONE, SCHEDULED, COMPLETED)


def play_sglang(
    case: SglangCase, *, check: bool = False, compiled: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield what every pass leaves in the log.

    Passes in which there is nobody pass without an entry.

    Raises
    ------
    ValueError
        If the compiled engine is asked for and cannot run the case.
    RuntimeError
        If ``check`` finds an invariant broken, or the scheduler stands still.
    """
    requests, parts = case.workload.requests, parts_of(case.config)
    if compiled:
        check_compiled(parts)
    table = np.zeros(len(requests), dtype=REQUESTS)
    replica = Replica(
        0,
        parts,
        contents_of(requests),
        table,
        start_time=AFTER_ALL_ARRIVALS,
        watched=True,
        compiled=compiled,
    )
    state, number = replica.state, 0
    state.patient = True
    order = sorted(range(len(requests)), key=lambda row: requests[row].arrival)
    log, stops = PassLog(state, [r.id for r in requests], order), iter(replica.stops())
    arriving, alive, num_empty = list(order), set[int](), 0
    while arriving or alive or state.num_batches or not state.sglang.is_idle:
        due = [row for row in arriving if requests[row].arrival <= number]
        arriving = arriving[len(due) :]
        alive.update(due)
        replica.submit(np.array(due, np.int64), np.zeros(len(due)))
        entry: dict[str, Any] = {"s": number}
        number += 1
        stop = _next(stops)
        if stop == DONE:
            stops = iter(replica.stops())
            stop = _next(stops)
        alive.difference_update([row for row in alive if table["finish_reason"][row] == REJECTED])
        num_empty = 0 if arriving or state.num_batches else num_empty + 1
        if num_empty > MOST_EMPTY:
            raise RuntimeError(f"SGLang's scheduler stands still after pass {number}")
        if stop == DONE:
            continue
        has_batch = log.scheduled(entry)
        if state.must_complete and _next(stops) != COMPLETED:
            raise RuntimeError("a pass ends before its output is processed")
        ended = [row for row in alive if table["finish_time"][row] > 0]
        alive.difference_update(ended)
        log.processed(entry, ended)
        if check:
            replica.check_integrity()
        if has_batch or ended or state.waiting.length or state.sglang.num_running:
            yield entry


def _next(stops: Iterator[int]) -> int:
    """Return the next stop at a pass; DONE once there is none."""
    return next((stop for stop in stops if stop in STOPS), DONE)
