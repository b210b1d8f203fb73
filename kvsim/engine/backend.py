"""The protocol of a running replica, between the world and the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.results.totals import Totals


class Backend(Protocol):
    """One replica's engine.

    It owns its clock and runs by itself up to a horizon that the world sets; it never asks what
    time it is elsewhere.
    """

    @property
    def clock(self) -> float:
        """Time of the last processed event."""

    def submit(self, request_ids: NDArray[np.int64], arrival_times: NDArray[np.float64]) -> None:
        """Append requests in order of arrival, none earlier than those before. Mutates."""

    def advance(self, horizon: float, *, until_finish: bool = False) -> int:
        """Run up to the horizon; return the number of requests that have ended.

        Processes what happens up to and including ``horizon`` but schedules no step at or after
        it: at that very time a request may still arrive. Stops early when it runs out of work, or,
        with ``until_finish``, at the first time at which a request ends. Mutates.
        """

    def next_event_time(self) -> float:
        """Time of the next event if nothing arrives, ``inf`` without one. Does not mutate."""

    def num_outstanding(self) -> int:
        """Number of requests submitted and not ended. Does not mutate."""

    def num_cached_tokens(self, request: IncomingRequest) -> int:
        """Tokens of a prompt that the prefix cache would hit now. Does not mutate."""

    def settle(self, end_time: float) -> Totals:
        """Stay idle for the rest of the run and return the totals. Mutates."""

    @property
    def memory(self) -> NDArray[Any]:
        """The memory table of this replica."""

    @property
    def steps(self) -> NDArray[Any]:
        """The steps table of this replica."""

    @property
    def memory_map(self) -> NDArray[np.uint8]:
        """Causes by sample and address bin."""
