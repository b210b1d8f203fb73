"""Sessions that a benchmark's clients begin in the middle, and the requests that warm the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.trace.cuts import with_columns
from kvsim.trace.plays import sessions_of
from kvsim.trace.rows import with_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]


class Limits(NamedTuple):
    """Longest pause, longest idle time of a session, and of all sessions together, seconds."""

    pause: float = math.inf
    session: float = math.inf
    everything: float = math.inf


@dataclass
class Begun:
    """A session that begins at a recorded time.

    Attributes
    ----------
    primers : rows of the last earlier request of each conversation that goes on
    rest : rows from the recorded time on
    time : the recorded time, seconds
    more : first rows of ``rest`` that are sent with the primers
    """

    primers: list[int]
    rest: list[int]
    time: float
    more: list[int]


def begin_sessions(
    trace: Trace, lanes: int, part: tuple[float, float], seed: int, num_more: int = 0
) -> list[Begun]:
    """Draw the recorded time at which each lane begins its first session.

    ``num_more`` requests of each session, but not its last one, are sent with the primers.
    """
    draw, first = np.random.default_rng((seed, lanes)), sessions_of(trace)[:lanes]
    return [_begin(trace, rows, draw.uniform(*part), num_more) for rows in first]


def _begin(trace: Trace, rows: Sequence[int], part: float, num_more: int) -> Begun:
    times = trace.arrival_time[rows]
    time = min(float(times[0] + part * (times[-1] - times[0])), float(times[-1]))
    num_past = int(np.searchsorted(times, time))
    past, rest = rows[:num_past], rows[num_past:]
    last = {int(trace.session_id[row]): row for row in past}
    going = {int(trace.session_id[row]) for row in rest} - {-1}
    more = rest[: min(num_more, len(rest) - 1)]
    if more:
        time = float(trace.arrival_time[more[-1]])
    primers = [row for conversation, row in last.items() if conversation in going]
    return Begun(primers, list(rest[len(more) :]), time, list(more))


def from_starts(trace: Trace, begun: Sequence[Begun], limits: Limits) -> Trace:
    """Return a trace of what is left of the first sessions, and of the other sessions.

    Times count from the start of the run. A request that waited only for earlier ones is sent when
    the rest of its pause is over; the first one of its session is planned, and others wait for it.
    """
    delays = [
        min(float(trace.arrival_time[one.rest[0]]) - one.time, limits.pause, limits.session)
        for one in begun
    ]
    early = max(min(delays) - limits.everything, 0.0)
    arrival = trace.arrival_time.copy()
    for one, delay in zip(begun, delays, strict=True):
        arrival[one.rest] += delay - early - arrival[one.rest[0]]
    first = np.array([row for one in begun for row in one.rest])
    first = first[np.argsort(arrival[first], kind="stable")]
    others = np.array(sorted(row for rows in sessions_of(trace)[len(begun) :] for row in rows))
    if len(others):
        arrival[others] += max(float(arrival[first[-1]]) + 1.0 - float(arrival[others[0]]), 0.0)
    rows = np.concatenate((first, others)).astype(np.int64)
    found = with_rows(with_columns(trace, arrival_time=arrival), rows)
    return _linked(found, rows, begun, limits.pause) if trace.has("after") else found


def _linked(trace: Trace, rows: Ints, begun: Sequence[Begun], longest: float) -> Trace:
    """Let the requests of a session that wait for nothing wait for the start of its first one."""
    place = np.zeros(int(rows.max()) + 1, np.int64)
    place[rows] = np.arange(len(rows))
    number, pauses = np.diff(trace.after_offsets), trace.think_time.copy()
    free, codes = [], []
    for one in begun:
        first, *later = place[one.rest]
        pauses[first] = 0.0
        alone = [row for row in later if not number[row]]
        free += alone
        codes += [-first - 1] * len(alone)
        pauses[alone] = np.minimum(trace.arrival_time[alone] - trace.arrival_time[first], longest)
    order = np.argsort(np.array(free, np.int64), kind="stable")
    added = np.array(free, np.int64)[order]
    after = np.insert(trace.after, trace.after_offsets[added], np.array(codes, np.int64)[order])
    number[added] += 1
    offsets = np.concatenate(([0], np.cumsum(number)))
    return with_columns(trace, after=after, after_offsets=offsets, think_time=pauses)


def warming(trace: Trace, begun: Sequence[Begun]) -> Trace | None:
    """Return the requests that warm the cache, of one output token and without pauses.

    A session sends its primers together, and then ``more`` one by one. None if there are none.
    """
    rows, after = list[int](), list[list[int]]()
    for one in begun:
        waits = list(range(len(rows), len(rows) + len(one.primers)))
        after += [[] for _ in one.primers]
        for k in range(len(one.more)):
            after.append(waits)
            waits = [len(rows) + len(one.primers) + k]
        rows += one.primers + one.more
    if not rows:
        return None
    offsets = np.concatenate(([0], np.cumsum([len(waits) for waits in after])))
    zeros = np.zeros(len(rows), np.int64)
    return with_columns(
        with_rows(trace, np.array(rows)),
        arrival_time=np.zeros(len(rows)),
        num_output_tokens=zeros + 1,
        ends_by=zeros,
        max_tokens=zeros,
        think_time=np.zeros(len(rows)),
        after_offsets=offsets,
        after=np.array([row for waits in after for row in waits], np.int64),
    )
