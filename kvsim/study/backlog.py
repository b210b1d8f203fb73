"""Check that requests start as fast as they arrive; latency targets miss this on short traces."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Allowed growth of a backlog, in standard deviations of a Poisson number plus a share of all
#: requests; the share corresponds to an overload of 2 %, which a search cannot resolve.
NOISE, SHARE = 3.0, 0.01
#: Interval over which a backlog is averaged, as a share of the time of the arrivals.
WINDOW = 0.1


#: Share of the requested rate that sessions must reach over the whole trace, and the share for
#: which a sufficient number of requests is computed.
REACHED, ENOUGH = 0.8, 0.9


class Spread(NamedTuple):
    """Actual request rate of sessions, and the number of requests that the wanted rate needs."""

    request_rate: float
    reaches: bool
    enough_requests: int


def spread_of(table: NDArray[Any], session_id: NDArray[np.int64], rate: float) -> Spread | None:
    """Compare the actual rate of the turns of sessions with ``rate``; None without sessions.

    Turns follow each other with pauses that do not depend on the rate, so a short trace at a high
    rate consists mostly of the tail of its last sessions.
    """
    if not (session_id >= 0).any():
        return None
    sent = table["arrival_time"][table["finish_reason"] != FinishReason.UNSENT]
    seconds = float(sent.max() - sent.min()) if len(sent) else 0.0
    if not seconds:
        return Spread(math.inf, reaches=True, enough_requests=len(sent))
    tail = max(seconds - len(sent) / rate, 0.0)
    enough = math.ceil(ENOUGH / (1 - ENOUGH) * rate * tail / 100) * 100
    reached = len(sent) / seconds
    return Spread(reached, reaches=reached >= REACHED * rate, enough_requests=enough)


class Backlog(NamedTuple):
    """Arrived requests that wait for their first token: at half time, and at the end.

    Decoding requests do not count, since their number is at most ``max_num_seqs``; an overload
    shows in the waiting requests. ``is_long`` is true if half the arrivals span at least the mean
    E2E latency of a request; in a shorter trace the replicas are still filling up.
    ``enough_requests`` is a number of requests for which ``is_long`` would be true at this rate.
    """

    half: float
    end: float
    num_requests: int
    is_long: bool
    enough_requests: int

    @property
    def grows(self) -> bool:
        """Return True if more requests wait at the end than at half time, beyond noise."""
        noise = NOISE * math.sqrt(self.half + 1) + SHARE * self.num_requests
        return self.end > self.half + noise


def backlog_of(table: NDArray[Any]) -> Backlog:
    """Return the backlog of a requests table, without rejected and unsent requests."""
    left_out = (FinishReason.REJECTED, FinishReason.UNSENT)
    rows = table[~np.isin(table["finish_reason"], left_out)]
    arrivals = rows["arrival_time"]
    if len(rows) < 2 or arrivals.max() == arrivals.min():
        return Backlog(0.0, 0.0, len(rows), is_long=True, enough_requests=len(table))
    begin, end = float(arrivals.min()), float(arrivals.max())
    half, width = (end - begin) / 2, WINDOW * (end - begin)
    begins = np.where(np.isnan(rows["first_token_time"]), np.inf, rows["first_token_time"])

    def waiting(until: float) -> float:
        from_, to = np.maximum(arrivals, until - width), np.minimum(begins, until)
        return float(np.maximum(to - from_, 0.0).sum()) / width

    ended = rows[~np.isnan(rows["finish_time"])]
    stay = float((ended["finish_time"] - ended["arrival_time"]).mean()) if len(ended) else 0.0
    enough = math.ceil(len(table) * max(stay / half, 1.0) / 100) * 100
    found = waiting(begin + half), waiting(end)
    return Backlog(*found, len(rows), is_long=stay <= half, enough_requests=enough)
