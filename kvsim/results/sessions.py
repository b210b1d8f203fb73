"""Metrics of whole sessions: durations, and cached shares of their prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.results.tables import FinishReason
from kvsim.trace.waits import roots_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace


def describe_sessions(
    requests: NDArray[Any],
    trace: Trace,
    seen_before: NDArray[np.int64],
    front_end_latency: float = 0.0,
) -> dict[str, Any] | None:
    """Return the metrics of a trace's sessions; None if it has no sessions.

    The sub-agents that a session spawns are part of it. Durations, in seconds, are those of
    sessions with all requests answered, from the first arrival to the last answer.

    Parameters
    ----------
    requests : the requests table
    trace : the requests, in the same order
    seen_before : prompt tokens that would hit in an infinite cache, per request
    front_end_latency : seconds that every TTFT contains outside the server
    """
    root = roots_of(trace)
    is_in = root >= 0
    own, number = requests[is_in], np.unique(root[is_in], return_inverse=True)[1].reshape(-1)
    is_sent = own["finish_reason"] != FinishReason.UNSENT
    if not is_sent.any():
        return None
    size = np.bincount(number)
    has_begun = np.bincount(number[is_sent], minlength=len(size)) > 0
    done = own["finish_reason"] == FinishReason.FINISHED
    is_whole = np.bincount(number[done], minlength=len(size)) == size
    begin, end = np.full(len(size), np.inf), np.full(len(size), -np.inf)
    np.minimum.at(begin, number[is_sent], own["arrival_time"][is_sent])
    np.maximum.at(end, number[done], own["finish_time"][done])
    durations = (end - begin)[is_whole]
    ttft = (own["first_token_time"] - own["arrival_time"])[done] + front_end_latency
    prompts = int(own["num_prompt_tokens"][done].sum())
    return {
        "num": int(has_begun.sum()),
        "completed": int(is_whole.sum()),
        "mean_turns": float(size[has_begun].mean()),
        "mean_duration": float(durations.mean()) if len(durations) else None,
        "p50_duration": float(np.median(durations)) if len(durations) else None,
        **_parts(own[is_whole[number]], number[is_whole[number]], durations),
        "p50_turn_ttft_ms": float(np.median(ttft) * 1000.0) if len(ttft) else None,
        "hit_rate": int(own["num_cached_tokens"][done].sum()) / prompts if prompts else None,
        "optimal_hit_rate": int(seen_before[is_in][done].sum()) / prompts if prompts else None,
    }


def _parts(
    requests: NDArray[Any], number: NDArray[np.int64], durations: NDArray[np.float64]
) -> dict[str, float | None]:
    """Return mean seconds in which a session is served, only waits in a queue, and pauses.

    A session is served while one of its requests is, and waits while none is and one is queued.
    """
    if not len(durations):
        return dict.fromkeys(("mean_served", "mean_queued", "mean_paused"))
    served = _seconds(requests["first_scheduled_time"], requests["finish_time"], number)
    in_flight = _seconds(requests["arrival_time"], requests["finish_time"], number)
    num = len(durations)
    return {
        "mean_served": served / num,
        "mean_queued": (in_flight - served) / num,
        "mean_paused": float(durations.sum() - in_flight) / num,
    }


def _seconds(
    start: NDArray[np.float64], end: NDArray[np.float64], number: NDArray[np.int64]
) -> float:
    """Return the seconds in which some interval of a session lasts, over all sessions."""
    total, session, until = 0.0, -1, 0.0
    order = np.lexsort((start, number))
    rows = zip(number[order].tolist(), start[order].tolist(), end[order].tolist(), strict=True)
    for own, begin, stop in rows:
        until = begin if own != session else max(until, begin)
        session = own
        total += max(stop - until, 0.0)
        until = max(until, stop)
    return total
