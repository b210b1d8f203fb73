"""A replica as part of a fleet: which pool it is of, what it has in hand, when it came and went."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from kvsim.engine.replica import Replica
    from kvsim.fleet.pool import Pool


class Life(Enum):
    """Where a replica is in its life; who drains gets no new work, who is gone none at all."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(eq=False)
class Member:
    """One replica of a fleet.

    Parameters
    ----------
    number : among all replicas of the run, as in the tables
    place : among those of its pool, as its router counts them
    pool : it belongs to
    replica : its engine
    start_time : since when its GPUs are paid for, seconds
    ready_time : since when it takes requests
    end_time : until when it is paid for
    rows : requests it has in hand, in order of their coming
    """

    number: int
    place: int
    pool: Pool
    replica: Replica
    start_time: float
    ready_time: float
    end_time: float = math.inf
    life: Life = Life.READY
    rows: dict[int, None] = field(default_factory=dict)

    def submit(self, request_id: int, time: float) -> None:
        """Hand over a request. Mutates."""
        self.rows[request_id] = None
        self.replica.submit(np.array([request_id]), np.array([time]))

    def take_ended(self) -> list[int]:
        """Return and forget the requests that have ended since the last call. Mutates."""
        rows = list(self.rows)
        reasons = self.pool.table["finish_reason"][rows]
        ended = [
            row
            for row, reason in zip(rows, reasons.tolist(), strict=True)
            if reason != FinishReason.IN_FLIGHT
        ]
        for row in ended:
            del self.rows[row]
        return ended
