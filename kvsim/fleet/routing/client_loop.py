"""Caller of the compiled loop over clients that wait for answers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.fleet.routing.arrival_loop import ArrivalLoop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica
    from kvsim.engine.replica_set import ReplicaSet
    from kvsim.fleet.gateways import Gateways

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class ClientLoop(ArrivalLoop):
    """Sends requests that wait for others, routes them, and advances the replicas.

    Parameters
    ----------
    gateways, replicas, replica_set, table, outputs, start_time : see :class:`ArrivalLoop`
    sent : by request: its send time, which the loop sets; 1 if it can be served; its planned time
    waiting : what each request waits for; see :func:`kvsim.fleet.waits.waiting_of`
    """

    may_lag = False

    def __init__(
        self,
        gateways: Gateways,
        replicas: Sequence[Replica],
        replica_set: ReplicaSet,
        table: NDArray[Any],
        outputs: Ints,
        start_time: float,
        sent: tuple[Floats, NDArray[np.bool_], Floats],
        waiting: tuple[Ints, Ints, Floats, bool],
    ) -> None:
        from kvsim.compiled import client_loop as code
        from kvsim.compiled.loops import translated

        number, places = len(table), len(replicas)
        rows, planned = np.zeros(number, np.int64), np.zeros(number)
        given = gateways, replicas, replica_set, table, rows, planned, outputs, start_time
        super().__init__(*given)
        self._clients = code
        self._moments[self._code.SCRAPED] = math.inf  # this loop scrapes by itself
        sent_time, can_be_served, times = sent
        waits = columns_of(*waiting)
        comes = np.flatnonzero(~waits[3])
        numbers, instants = np.zeros(code.LAST + 1, np.int64), np.zeros(code.HORIZON + 1)
        numbers[code.COMING], numbers[code.LAST] = 1, -1
        instants[code.NOW], instants[code.LOOKED] = start_time, -math.inf
        self._horizon = instants[code.HORIZON :]
        self._waiting, self._news = np.zeros(places, np.bool_), np.zeros(places, np.int64)
        self._columns = (
            *(numbers, instants, queue_of(number + 1), queue_of(number)),
            *((np.zeros(number), np.zeros(number, np.int64)), waits, (comes, times[comes])),
            (np.zeros(number, np.bool_), sent_time, can_be_served),
            tuple(np.zeros((2, number), np.int64)),
            (*np.full((2, places), -1), np.full(number, -1), np.zeros(places, np.int64)),
            *(self._waiting, self._news),
        )
        serve = translated(code.serve_clients)
        self._route = lambda loop, steps, most: serve(loop, self._columns, steps, most)

    def _serve(self, outcome: int) -> None:
        if outcome != self._clients.GO_ON:
            super()._serve(outcome)
            return
        place, times = int(self._cursor[1]), self._replica_set.times
        before, replica = times[place], self._replicas[place]
        replica.go_on()
        times[place] = replica.state.next_event_time
        if times[place] == before and before >= self._horizon[0]:
            self._waiting[place] = True


def queue_of(number: int) -> tuple[Floats, Ints, Ints]:
    """Return an empty queue with room for a number of items."""
    return np.zeros(number), np.zeros(number, np.int64), np.zeros(number, np.int64)


def columns_of(
    offsets: Ints, after: Ints, think_time: Floats, has_plan: bool
) -> tuple[NDArray[Any], ...]:
    """Return what requests wait for by event, as the compiled loop reads it."""
    num_left = np.diff(offsets).astype(np.int64)
    number = len(num_left)
    later = np.repeat(np.arange(number), num_left)
    codes = np.where(after >= 0, after, number - 1 - after)  # sent: the request plus the number
    starts = np.concatenate(([0], np.cumsum(np.bincount(codes, minlength=2 * number))))
    pauses, times = np.full(number, math.inf), np.ascontiguousarray(think_time, np.float64)
    ends = after >= 0
    np.minimum.at(pauses, after[ends], times[later[ends]])
    is_due = (num_left > 0) & (not has_plan)
    rows = later[np.argsort(codes, kind="stable")]
    return starts, rows, num_left, is_due, np.full(number, -math.inf), times, pauses
