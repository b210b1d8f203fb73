"""The life of each request, cut into consecutive phases."""

from __future__ import annotations

import math
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.results.block_events import BlockEvent
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.results.result import Result

QUEUE, PREFILL, TRANSFER, DECODE, PREEMPTED = PHASES = (
    *("queue", "prefill", "transfer", "decode"),
    "preempted",
)
#: Events at which a phase of a request starts or ends.
_MARKS = (BlockEvent.PREEMPT, BlockEvent.ADMIT, BlockEvent.RECV)

Phase = tuple[str, float, float]


def marks_of(result: Result) -> dict[int, list[tuple[float, int]]]:
    """Return by request the recorded events that separate its phases: (seconds, kind), by time."""
    events = result.block_events
    marks: dict[int, list[tuple[float, int]]] = {}
    told = events[np.isin(events["kind"], _MARKS)]
    for time, kind, request in zip(
        told["time"].tolist(), told["kind"].tolist(), told["request"].tolist(), strict=True
    ):
        marks.setdefault(request, []).append((time, kind))
    return marks


def phases(row: Any, marks: list[tuple[float, int]], end_time: float) -> list[Phase]:
    """Return the phases of a request as (name, start, end) in seconds, without empty ones.

    The queue ends when the request is first scheduled, the prefill with the first token, the
    transfer when the KV has arrived. The time from a preemption to the next admission is
    ``preempted``. The phases sum to the end-to-end latency.

    Parameters
    ----------
    row : row of the requests table
    marks : the request's entry of :func:`marks_of`; if empty, no preemption or transfer is known
    end_time : end of the phases of a request that has not ended, seconds
    """
    if int(row["finish_reason"]) == FinishReason.UNSENT:
        return []
    token, finish = float(row["first_token_time"]), float(row["finish_time"])
    end = end_time if math.isnan(finish) else finish
    begins = _begins(row, marks, token)
    if not math.isnan(token):
        begins = _with_decode(begins, token)
    begins.sort(key=itemgetter(0))
    stops = [*(time for time, _ in begins[1:]), end]
    return [
        (name, start, min(stop, end))
        for (start, name), stop in zip(begins, stops, strict=True)
        if min(stop, end) > start
    ]


def _begins(row: Any, marks: list[tuple[float, int]], token: float) -> list[tuple[float, str]]:
    """Return the recorded start of each phase except decoding."""
    scheduled, lost = float(row["first_scheduled_time"]), False
    begins = [(float(row["arrival_time"]), QUEUE)]
    if not math.isnan(scheduled):
        begins.append((scheduled, PREFILL))
    for time, kind in marks:
        if kind == BlockEvent.PREEMPT:
            begins.append((time, PREEMPTED))
            lost = True
        elif kind == BlockEvent.ADMIT and lost:
            begins.append((time, DECODE if time >= token else PREFILL))
            lost = False
        elif kind == BlockEvent.RECV:
            begins.append((time, TRANSFER))
        elif kind == BlockEvent.ADMIT and int(row["prefill_replica"]) >= 0 and time > scheduled:
            begins.append((time, PREFILL))  # the decode replica computes the last prompt token
    return begins


def _with_decode(begins: list[tuple[float, str]], token: float) -> list[tuple[float, str]]:
    """Add the decode phase from the first token on, unless the request is preempted then."""
    before = [one for one in begins if one[0] <= token]
    after = [one for one in begins if one[0] > token]
    if before and max(before)[1] == PREEMPTED:
        return begins
    return [*before, (token, DECODE), *after]


def last_scheduled_times(result: Result) -> NDArray[np.float64]:
    """Return the last time each request was scheduled before its first token, seconds.

    vLLM's queue time ends then. Without block events it is the first scheduled time.
    """
    times: NDArray[np.float64] = result.served["first_scheduled_time"].copy()
    tokens = result.served["first_token_time"]
    events = result.block_events
    admits = events[events["kind"] == BlockEvent.ADMIT]
    rows, when = admits["request"], admits["time"]
    alone = result.served["prefill_replica"][rows] < 0
    early = alone & (when <= tokens[rows])
    np.maximum.at(times, rows[early], when[early])
    return times
