"""Lifecycle events: first tokens and ends of requests since the last collection."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica


class EventRow(NamedTuple):
    """A first token (``is_end`` 0) or an end (1) of a request; rows are sorted by their fields."""

    time: float
    is_end: int
    request_id: int
    place: int


class LifecycleEvents(Protocol):
    """Follows requests to their first token and their end, each reported once."""

    def send(self, request_id: int, place: int) -> None:
        """Follow a request that is sent to a slot. Mutates."""

    def collect(self) -> list[EventRow]:
        """Return the new events, slot by slot. Mutates."""

    def withdraw(self, request_id: int, place: int) -> bool:
        """Stop following a request; return True if it waited for its first token. Mutates."""

    def move(self, request_id: int, place: int, target: int) -> None:
        """Follow a request, which has its first token, to another slot. Mutates."""

    def replace(self, place: int, replica: Replica) -> None:
        """Follow a new replica in a slot, and drop the previous one's requests. Mutates."""

    def lose(self, place: int) -> None:
        """Stop reading a replica. Mutates."""


class PythonLifecycleEvents:
    """Collects events replica by replica.

    Parameters
    ----------
    replicas : the replicas that serve
    table : the run's requests table, with the times of ended requests
    """

    def __init__(self, replicas: Sequence[Replica], table: NDArray[Any]) -> None:
        self._replicas = list(replicas)
        self._table = table
        self._alive: list[dict[int, None]] = [{} for _ in replicas]
        self._waiting: list[dict[int, None]] = [{} for _ in replicas]  # without a first token
        self._lost: set[int] = set()
        self._seen = [-math.inf for _ in replicas]  # clock at the last collection

    def replace(self, place: int, replica: Replica) -> None:
        self._replicas[place] = replica
        self._alive[place], self._waiting[place] = {}, {}
        self._seen[place] = -math.inf
        self._lost.discard(place)

    def lose(self, place: int) -> None:
        self._lost.add(place)

    def send(self, request_id: int, place: int) -> None:
        self._alive[place][request_id] = None
        self._waiting[place][request_id] = None

    def withdraw(self, request_id: int, place: int) -> bool:
        del self._alive[place][request_id]
        return self._waiting[place].pop(request_id, True) is None

    def move(self, request_id: int, place: int, target: int) -> None:
        self.withdraw(request_id, place)
        self._alive[target][request_id] = None

    def collect(self) -> list[EventRow]:
        lifecycle_events: list[EventRow] = []
        for place, replica in enumerate(self._replicas):
            if place in self._lost:
                continue
            if self._alive[place] and replica.clock != self._seen[place]:
                self._seen[place] = replica.clock
                self._look(place, replica, lifecycle_events)
        return lifecycle_events

    def _look(self, place: int, replica: Replica, lifecycle_events: list[EventRow]) -> None:
        alive, waiting, table = self._alive[place], self._waiting[place], self._table
        if replica.num_outstanding() < len(alive):
            for request_id in list(alive):
                row = table[request_id]
                if row["finish_reason"] == FinishReason.IN_FLIGHT:
                    continue
                first, end = float(row["first_token_time"]), float(row["finish_time"])
                end = replica.clock if math.isnan(end) else end  # a rejection has no finish time
                if request_id in waiting:
                    del waiting[request_id]
                    lifecycle_events.append(
                        EventRow(end if math.isnan(first) else first, 0, request_id, place)
                    )
                lifecycle_events.append(EventRow(end, 1, request_id, place))
                del alive[request_id]
        if waiting:
            started = replica.first_tokens()
            for request_id in [i for i in waiting if i in started]:
                del waiting[request_id]
                lifecycle_events.append(EventRow(started[request_id], 0, request_id, place))
