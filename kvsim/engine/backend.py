"""The protocol by which a fleet, or a run of one replica, advances a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.results.totals import Totals


class Backend(Protocol):
    """One replica's engine.

    It owns its clock, and runs independently up to a horizon that the caller sets.
    """

    @property
    def clock(self) -> float:
        """Time of the last processed event."""

    def submit(self, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]) -> None:
        """Append requests in order of arrival, none before the last submitted one. Mutates."""

    def advance(self, horizon: float, *, until_finish: bool = False) -> int:
        """Run up to the horizon; return the number of requests that have ended.

        Processes all events up to and including ``horizon``, but schedules no step at or after it:
        a request may still arrive at that time. Stops early without work or, with
        ``until_finish``, at the first time at which a request ends. Mutates.
        """

    def next_event_time(self) -> float:
        """Time of the next event if nothing arrives, ``inf`` without one. Does not mutate."""

    def num_outstanding(self) -> int:
        """Number of requests submitted and not ended. Does not mutate."""

    def num_cached_tokens(self, request: IncomingRequest) -> int:
        """Tokens of a prompt that the prefix cache would hit now. Does not mutate."""

    def settle(self, end_time: float) -> Totals:
        """Record the time until ``end_time`` as idle, and return the totals. Mutates."""

    @property
    def memory(self) -> NDArray[Any]:
        """The memory table of this replica."""

    @property
    def steps(self) -> NDArray[Any]:
        """The steps table of this replica."""

    @property
    def memory_map(self) -> NDArray[np.uint8]:
        """Main cause of use or waste, shape (samples, address bins)."""
