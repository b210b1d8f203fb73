"""Sessions of a trace in another order, or several times: the plays of its lanes."""

from __future__ import annotations

import math
from collections import defaultdict
from heapq import heapify, heapreplace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace.cuts import with_columns
from kvsim.trace.rows import columns_of
from kvsim.trace.waits import roots_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]

#: Most requests of a trace whose sessions begin again.
MOST_REQUESTS = 1_000_000
#: Seconds that an answer takes at least, to limit the number of plays.
LEAST_ANSWER = 0.005


def sessions_of(trace: Trace) -> list[list[int]]:
    """Return the rows of each session with its sub-agents, in order of their first requests.

    A request without a session counts as a session.
    """
    root = roots_of(trace)
    found: dict[int, list[int]] = defaultdict(list)
    for row, first in enumerate(root.tolist()):
        found[row if first < 0 else first].append(row)
    return list(found.values())


def in_plays(
    trace: Trace,
    lanes: int,
    horizon: float,
    seed: int | None,
    shared: int = 0,
    longest: float = math.inf,
    *,
    is_begun: bool = False,
) -> Trace:
    """Return a trace of the sessions as ``lanes`` lanes take them.

    Parameters
    ----------
    trace : the requests
    horizon : seconds for which no lane may be empty: sessions begin again as often as needed
    seed : seed of the order of the sessions, drawn anew each time all have begun; None keeps it
    shared : first tokens of a prompt with the same content in every play; other contents are new
    longest : time to which clients may shorten a pause, seconds
    is_begun : lanes begin their first sessions anywhere, so that these may take no time
    """
    sessions = sessions_of(trace)
    order = _order(len(sessions), seed)
    number = len(sessions)
    if np.isfinite(horizon):
        most = max(number, number * (MOST_REQUESTS // len(trace)))
        number = min(lanes, most) if is_begun else 0
        for _ in range(number):
            next(order)
        seconds = _least_seconds(trace, sessions, longest)
        number += _num_plays(seconds, lanes, horizon, order, most - number)
        order = _order(len(sessions), seed)
    if number <= len(sessions) and seed is None:
        return trace
    plays = [next(order) for _ in range(max(number, len(sessions)))]
    return _joined(trace, [sessions[play] for play in plays], plays, shared)


def _order(number: int, seed: int | None) -> Iterator[int]:
    """Yield the sessions, again and again."""
    draw = None if seed is None else np.random.default_rng(seed)
    for _ in count():
        yield from range(number) if draw is None else draw.permutation(number).tolist()


def _least_seconds(trace: Trace, sessions: Sequence[Sequence[int]], longest: float) -> list[float]:
    """Return a time that each session takes at least: planned times and pauses on its path."""
    end = np.zeros(len(trace))
    times, pauses = trace.arrival_time.tolist(), np.minimum(trace.think_time, longest).tolist()
    offsets, after = trace.after_offsets.tolist(), trace.after.tolist()
    for rows in sessions:
        for row in rows:
            codes = after[offsets[row] : offsets[row + 1]]
            sent = times[row] - times[rows[0]]
            if codes:
                sent = pauses[row] + max(end[k] if k >= 0 else 0.0 for k in codes)
            end[row] = sent + LEAST_ANSWER
    return [float(end[rows].max()) for rows in sessions]


def _num_plays(
    seconds: Sequence[float], lanes: int, horizon: float, order: Iterator[int], most: int
) -> int:
    """Return the number of sessions that lanes begin within the horizon, at most."""
    free = [0.0] * min(lanes, most)
    heapify(free)
    for number in range(most):
        if free[0] >= horizon:
            return number
        heapreplace(free, free[0] + seconds[next(order)])
    return most


def _joined(
    trace: Trace, plays: Sequence[Sequence[int]], sessions: Sequence[int], shared: int
) -> Trace:
    """Return a trace of plays, one after the other; those of a session have contents of their own.

    ``sessions`` names the session of each play.
    """
    rows = np.concatenate([np.array(play, np.int64) for play in plays])
    size = np.array([len(play) for play in plays])
    begun: dict[int, int] = defaultdict(int)
    times = np.zeros(len(plays), np.int64)  # how often the session has been played before
    for k, session in enumerate(sessions):
        times[k], begun[session] = begun[session], begun[session] + 1
    again = np.repeat(times, size)
    first = np.cumsum(size) - size
    begin = trace.arrival_time[rows[first]]
    span = trace.arrival_time[rows[first + size - 1]] - begin
    base = trace.arrival_time[0] + np.concatenate(([0.0], np.cumsum(np.ceil(span) + 1.0)[:-1]))
    columns = columns_of(trace, rows)
    columns["arrival_time"] = trace.arrival_time[rows] + np.repeat(base - begin, size)
    place = np.zeros(len(trace), np.int64)  # of a request in its session
    place[rows] = np.arange(len(rows)) - np.repeat(first, size)
    begin_of = np.repeat(np.repeat(first, size), np.diff(columns["after_offsets"]))
    code: Ints = columns["after"]
    columns["after"] = np.where(
        code < 0, -(begin_of + place[-code - 1]) - 1, begin_of + place[code]
    )
    conversation: Ints = columns["session_id"]
    more = int(trace.session_id.max()) + 1
    columns["session_id"] = np.where(conversation < 0, conversation, conversation + again * more)
    return with_columns(trace, **columns | _contents(trace, columns, again, shared))


def _contents(
    trace: Trace, columns: dict[str, NDArray[Any]], again: Ints, shared: int
) -> dict[str, NDArray[Any]]:
    """Return contents of prompts and outputs: new ones for sessions that are played ``again``."""
    output = columns["output_content_id"]
    unnamed = -2 * np.arange(len(output), dtype=np.int64) - 2
    if not trace.has_segments:
        return {"output_content_id": np.where(output < 0, unnamed, output)}
    known = np.unique(np.concatenate((trace.segment_content_id, output[output >= 0])))

    def new(content: Ints, times: Ints) -> Ints:
        rank = np.searchsorted(known, content)
        return np.where(times > 0, known[-1] + 1 + (times - 1) * len(known) + rank, content)

    found = _split(columns, shared)
    times = np.repeat(again, np.diff(found["segment_offsets"]))
    is_shared = _starts(found) < shared
    is_shared &= ~np.isin(found["segment_content_id"], output)
    found["segment_content_id"] = new(found["segment_content_id"], np.where(is_shared, 0, times))
    found["output_content_id"] = np.where(output < 0, unnamed, new(output, again))
    return found


def _starts(columns: dict[str, NDArray[Any]]) -> Ints:
    """Return the first token of each segment in its prompt."""
    offsets, length = columns["segment_offsets"], columns["segment_num_tokens"]
    before = np.concatenate(([0], np.cumsum(length)))
    found: Ints = before[:-1] - np.repeat(before[offsets[:-1]], np.diff(offsets))
    return found


def _split(columns: dict[str, NDArray[Any]], token: int) -> dict[str, NDArray[Any]]:
    """Return the columns of segments, each of which ends or begins at a token that it holds."""
    start, length = _starts(columns), columns["segment_num_tokens"]
    head = np.where((start < token) & (token < start + length), token - start, 0)
    piece = np.repeat(np.arange(len(head)), 1 + (head > 0))
    is_second = np.concatenate(([False], piece[1:] == piece[:-1]))
    is_first = np.concatenate((is_second[1:], [False]))
    rest = np.where(is_second, length[piece] - head[piece], length[piece])
    total = np.concatenate(([0], np.cumsum(1 + (head > 0))))
    return {
        "segment_offsets": total[columns["segment_offsets"]],
        "segment_content_id": columns["segment_content_id"][piece],
        "segment_start": columns["segment_start"][piece] + np.where(is_second, head[piece], 0),
        "segment_num_tokens": np.where(is_first, head[piece], rest),
    }
