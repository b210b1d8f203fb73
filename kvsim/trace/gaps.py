"""Recorded gaps between the starts of a session's requests, cut as by clients of benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.trace.cuts import with_columns
from kvsim.trace.rows import with_rows
from kvsim.trace.waits import roots_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


def with_start_gaps_cut(trace: Trace, longest: float) -> Trace:
    """Return a trace whose sessions start a request at least every ``longest`` seconds.

    Sub-agents belong to their session. A pause loses what is cut since the last start among the
    requests that it waits for.
    """
    order, is_first, gaps = _start_gaps(trace)
    total = np.cumsum(np.maximum(gaps - longest, 0.0))
    before = total[is_first]  # what was cut in the sessions before
    cut = np.empty(len(trace))
    cut[order] = total - before[np.cumsum(is_first) - 1]
    since = np.zeros(len(trace))
    later = np.repeat(np.arange(len(trace)), np.diff(trace.after_offsets))
    np.maximum.at(since, later, cut[np.where(trace.after < 0, -trace.after - 1, trace.after)])
    pauses = np.maximum(trace.think_time - (cut - since), 0.0)
    start = trace.arrival_time - cut
    changed = with_columns(trace, arrival_time=start, think_time=pauses)
    return with_rows(changed, np.argsort(start, kind="stable"))


def start_gaps_note(trace: Trace, longest: float) -> str:
    """Return how many gaps of a trace a limit cuts, and what it leaves of them."""
    _, is_first, found = _start_gaps(trace)
    gaps = found[~is_first]
    left = np.minimum(gaps, longest).sum() / gaps.sum() if gaps.any() else 1.0
    return (
        f"start_gap_cap = {longest:g}: {int((gaps > longest).sum()):,} of {len(gaps):,} gaps "
        f"between starts are cut, {100 * left:.1f} % of their time is left"
    )


def _start_gaps(trace: Trace) -> tuple[Ints, NDArray[np.bool_], Floats]:
    """Return the rows by session and time, which of them are first, and seconds since the last."""
    root = roots_of(trace)
    session = np.where(root >= 0, root, np.arange(len(trace)))
    order = np.argsort(session, kind="stable")
    is_first = np.append(True, session[order][1:] != session[order][:-1])
    gaps = np.diff(trace.arrival_time[order], prepend=0.0)
    return order, is_first, np.where(is_first, 0.0, gaps)
