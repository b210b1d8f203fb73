"""A replica as part of a fleet: its pool's role, its requests, its start and its end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica
    from kvsim.pool_config import Role
    from kvsim.results.totals import Totals


class Life(Enum):
    """State of a replica between its start and its end.

    A draining replica receives no new requests. A failed one does until its gateway detects the
    failure.
    """

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"
    GONE = "gone"


@dataclass(eq=False)
class Member:
    """One replica of a fleet.

    Parameters
    ----------
    number : its number among all replicas of the run, as in the tables
    place : its slot in its pool, by which routers choose it
    role : role of its pool
    replica : its engine
    table : the requests table of its pool
    on_withdraw : called with a request's row and the time before the request is withdrawn
    start_time : time from which its GPUs are paid for, seconds
    ready_time : time from which it accepts requests
    end_time : time until which its GPUs are paid for
    life : its state between start and end
    is_first : it existed when the run began
    drain_time : time from which it receives no new requests
    last_end_time : end of its last request
    is_followed : the fleet tracks its requests and their ends
    rows : its unfinished requests in order of submission, if it is followed
    """

    number: int
    place: int
    role: Role
    replica: Replica
    table: NDArray[Any]
    on_withdraw: Callable[[int, float], object]
    start_time: float
    ready_time: float
    end_time: float = math.inf
    life: Life = Life.READY
    is_first: bool = False
    drain_time: float = -math.inf
    last_end_time: float = -math.inf
    is_followed: bool = True
    rows: dict[int, None] = field(default_factory=dict)

    def submit(self, request_id: int, time: float) -> None:
        if self.is_followed:
            self.rows[request_id] = None
        if self.life is Life.FAILED:
            return
        self.replica.submit(np.array([request_id]), np.array([time]))

    @property
    def is_alive(self) -> bool:
        """Return True if the replica's engine runs."""
        return self.life in (Life.READY, Life.DRAINING)

    @property
    def is_choosable(self) -> bool:
        """Return True if gateways may choose it: it is not draining, and no failure is detected."""
        return self.life in (Life.READY, Life.FAILED) and self.drain_time == -math.inf

    def withdraw(self, request_id: int, time: float) -> None:
        """Withdraw a request sent to this replica, arrived or not. Mutates."""
        here = request_id in self.rows
        self.rows.pop(request_id, None)
        if self.is_alive:
            self.on_withdraw(request_id, time)
            self.replica.offer(request_id, 0)
            if here:
                self.replica.withdraw(request_id, time)

    def settle(self, end_time: float) -> Totals:
        """Idle until the replica's end, or the run's, and return its totals. Mutates."""
        return self.replica.settle(max(min(self.end_time, end_time), self.replica.clock))

    def lifetime(self, end_time: float, whole: float) -> float:
        """Return its lifetime in seconds.

        ``whole``, if above 0, is the lifetime of a replica that exists during the entire run.
        """
        if whole and self.end_time == math.inf and self.is_first:
            return whole
        return max(min(self.end_time, end_time) - self.start_time, 0.0)

    def pop_ended(self) -> list[int]:
        """Remove and return the requests that have ended since the last call. Mutates."""
        rows = np.fromiter(self.rows, np.int64, len(self.rows))
        has_ended = self.table["finish_reason"][rows] != FinishReason.IN_FLIGHT
        ended: list[int] = rows[has_ended].tolist()
        for row in ended:
            del self.rows[row]
        if ended:
            last = float(self.table["finish_time"][ended].max())
            if math.isnan(last):  # a rejected request has no finish time
                last = self.replica.clock
            self.last_end_time = max(self.last_end_time, last)
        return ended
