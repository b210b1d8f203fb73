"""Lifecycle events of requests on compiled replicas, collected in one call."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.compiled import replica_set
from kvsim.compiled.loops import translated
from kvsim.fleet.tracking.lifecycle_events import EventRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica


class CompiledLifecycleEvents:
    """Collects events from the replicas' memory.

    Its results equal :class:`kvsim.fleet.tracking.lifecycle_events.PythonLifecycleEvents`.

    Parameters
    ----------
    replicas : the replicas that serve
    table : the run's requests table, with the times of ended requests
    """

    def __init__(self, replicas: Sequence[Replica], table: NDArray[Any]) -> None:
        self._collect = translated(replica_set.collect_lifecycle_events)
        self._send = translated(replica_set.send)
        names = ("finish_reason", "first_token_time", "finish_time")
        self._table = tuple(table[name] for name in names)
        self.num_output_tokens = table["num_output_tokens"]
        number, places = len(table), len(replicas)
        self._addresses = np.array([one.address for one in replicas], np.int64)
        self._seen = np.full((places, 2), -math.inf)  # clock, first tokens at last collection
        self._waits = np.full(number, -1, np.int32)  # slots of requests without a first token
        self._tokens = np.full(number, math.nan)
        # The requests in each slot, in the order in which they were sent.
        self._firsts, self._lasts = np.full(places, -1), np.full(places, -1)
        self._afters = np.full(number, -1)
        self._counts = np.zeros((places, 2), np.int64)
        self._lines = self._firsts, self._lasts, self._afters
        most = 2 * number  # a first token and an end each; memory of what never comes is not used
        self._news = np.empty(most), np.empty((most, 3), np.int64)

    def replace(self, place: int, replica: Replica) -> None:
        self.lose(place)
        self._waits[self._waits == place] = -1
        self._addresses[place] = replica.address
        self._seen[place] = -math.inf

    def lose(self, place: int) -> None:
        self._addresses[place] = 0
        self._firsts[place] = self._lasts[place] = -1
        self._counts[place] = 0

    def send(self, request_id: int, place: int) -> None:
        if not self._addresses[place]:  # a lost replica's list is never read
            self._waits[request_id] = place
            return
        self._send(self._waits, self._lines, self._counts, int(request_id), place)

    def withdraw(self, request_id: int, place: int) -> bool:
        waited = bool(self._waits[request_id] == place)
        self._waits[request_id] = -1
        if not self._addresses[place]:
            return waited
        before, at = -1, self._firsts[place]
        while at != request_id:
            before, at = at, self._afters[at]
        after = self._afters[request_id]
        if before < 0:
            self._firsts[place] = after
        else:
            self._afters[before] = after
        if after < 0:
            self._lasts[place] = before
        self._counts[place] -= (1, waited)
        return waited

    def move(self, request_id: int, place: int, target: int) -> None:
        self.withdraw(request_id, place)
        self.send(request_id, target)
        self._waits[request_id] = -1
        self._counts[target, 1] -= 1

    def columns(self) -> tuple[Any, ...]:
        """Return the arrays that :func:`kvsim.compiled.replica_set.poll` reads and writes."""
        return self._seen, self._table, self._waits, self._tokens, self._lines, self._counts

    def collect(self) -> list[EventRow]:
        number = self._collect(
            *(self._addresses, self._seen, self._table),
            *(self._waits, self._tokens, self._lines, self._counts, self._news),
        )
        if not number:
            return []
        times, facts = (one[:number].tolist() for one in self._news)
        return [EventRow(t, *row) for t, row in zip(times, facts, strict=True)]
