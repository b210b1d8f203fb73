"""Conversations that wait: a turn is sent when the one before it has been answered.

A trace has fixed times, so the times are sought: the fleet is simulated again and again, each time
with turns sent when the last runs say that the ones before them end. Half of every new latency is
mixed in, and the last rounds are averaged, since a router that deals in turn never settles quite.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kvsim
from kvsim.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

ROUNDS, AVERAGED = 14, 4
#: Seconds that a turn is first taken to last.
GUESS = 20.0


class Loop(NamedTuple):
    """What a closed loop came to, over the last rounds.

    Attributes
    ----------
    seconds : from the first request to the last answer
    hit_rate : of prompt tokens
    off : seconds between when a turn was sent and when it should have been, mean
    """

    seconds: float
    hit_rate: float
    off: float


def before(session: NDArray[np.int64]) -> list[int]:
    """Return the turn before each turn of its session, -1 for the first."""
    last: dict[int, int] = {}
    found = []
    for row, number in enumerate(session.tolist()):
        found.append(last.get(number, -1))
        last[number] = row
    return found


def starts(previous: list[int], latency: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return when each turn is sent if all last as long as given; sessions begin at 0."""
    times = np.zeros(len(previous))
    for row, earlier in enumerate(previous):
        if earlier >= 0:
            times[row] = times[earlier] + latency[earlier]
    return times


def in_order(trace: Trace, times: NDArray[np.float64]) -> tuple[Trace, NDArray[np.intp]]:
    """Return the requests at other times, in order, and the rows they were."""
    order = np.argsort(times, kind="stable")
    answers = trace.output_content_id[order]
    contents = [[tuple(s) for s in trace.segments_of(int(row))] for row in order]
    sent = Trace.from_arrays(
        times[order],
        trace.num_prompt_tokens[order],
        trace.num_output_tokens[order],
        segments=contents if trace.has_segments else None,
        output_content_id=answers if (answers >= 0).all() else None,
        session_id=trace.session_id[order],
    )
    return sent, order


def closed_loop(trace: Trace, *, rounds: int = ROUNDS, **options: Any) -> Loop:
    """Serve sessions whose turns wait for each other; a trace's own times are not used."""
    previous = before(trace.session_id)
    latency, found = np.full(len(trace), GUESS), []
    for number in range(rounds):
        times = starts(previous, latency)
        sent, order = in_order(trace, times)
        rows = kvsim.simulate(sent, **options).requests
        now = np.empty(len(trace))
        now[order] = rows["finish_time"] - rows["arrival_time"]
        off = float(np.abs(starts(previous, now) - times).mean())
        hits = float(rows["num_cached_tokens"].sum() / rows["num_prompt_tokens"].sum())
        found.append(Loop(float(rows["finish_time"].max()), hits, off))
        latency = now if number == 0 else (latency + now) / 2
    return Loop(*(float(np.mean(values)) for values in zip(*found[-AVERAGED:], strict=True)))
