"""Requests that wait for other requests, as turns of a session do: columns of a trace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.trace.columns import RowError, check_length, check_rows, everywhere, read_shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Second entry of an item of ``after`` that waits until a request is sent, not until it ends.
START = "start"


def read_waits(
    after: Sequence[Sequence[Any]] | None, think_time: ArrayLike | None, n: int
) -> tuple[Ints, Ints, Floats]:
    """Return offsets by request, the requests that each waits for, and think times.

    The end of request k is coded as ``k``, its sending as ``-k - 1``.

    Raises
    ------
    RowError
        For a request that is not earlier in the trace, or a time below 0.
    """
    times = np.zeros(n) if think_time is None else read_shares("think_time", think_time, n)
    ok = (times >= 0) & (times < math.inf)
    check_rows("think_time", times, ok, "at least 0 and finite")
    if after is None:
        return everywhere(0, n + 1), np.zeros(0, np.int64), times
    check_length("after", after, n, "list")
    offsets = np.zeros(n + 1, np.int64)
    awaited: list[int] = []
    for row, items in enumerate(after):
        if not isinstance(items, list | tuple | np.ndarray):
            raise RowError(row, "after", f"is {items!r}, must be a list of requests")
        awaited.extend(_read_item(row, item) for item in items)
        offsets[row + 1] = len(awaited)
    return offsets, np.array(awaited, np.int64), times


def _read_item(row: int, item: Any) -> int:
    """Return the code of an entry of ``after``."""
    starts = isinstance(item, list | tuple) and len(item) == 2 and item[1] == START
    other = item[0] if starts else item
    if isinstance(other, bool) or not isinstance(other, int | np.integer):
        raise RowError(row, "after", f'has {item!r}, must be requests or [request, "{START}"]')
    if not (0 if starts else -row) <= other < row:  # codes below 0 are allowed, too
        allowed = f"requests of earlier rows (0 to {row - 1})" if row else "empty in the first row"
        raise RowError(row, "after", f"has {other}, must be {allowed}")
    return -int(other) - 1 if starts else int(other)


def roots_of(trace: Trace) -> Ints:
    """Return by request the first request of its tree; -1 for a request without a tree.

    A tree joins the requests of a session, and any two requests of which one waits for the other.
    """
    if not len(trace.after):
        return _first_turns(trace.session_id)
    root = np.arange(len(trace)).tolist()

    def find(row: int) -> int:
        while root[row] != row:
            root[row] = row = root[root[row]]
        return row

    seen: dict[int, int] = {}
    is_alone = ((trace.session_id < 0) & (np.diff(trace.after_offsets) == 0)).tolist()
    awaited = np.where(trace.after < 0, -trace.after - 1, trace.after).tolist()
    offsets = trace.after_offsets.tolist()
    for row, session in enumerate(trace.session_id.tolist()):
        others = awaited[offsets[row] : offsets[row + 1]]
        if session >= 0:
            others = [*others, seen.setdefault(session, row)]
        for other in others:
            a, b = sorted((find(row), find(other)))
            root[b] = a
            is_alone[other] = False
    found = np.array([find(row) for row in range(len(root))], np.int64)
    return np.where(np.array(is_alone), -1, found)


def _first_turns(session_id: Ints) -> Ints:
    """Return by request the first request of its session; -1 for a request without a session."""
    found, rows = np.full(len(session_id), -1), np.flatnonzero(session_id >= 0)
    _, first, session = np.unique(session_id[rows], return_index=True, return_inverse=True)
    found[rows] = rows[first][session]
    return found
