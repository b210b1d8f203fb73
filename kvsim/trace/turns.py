"""Turns of sessions: their pauses, and the clients' hints for their blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.trace.waits import roots_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Turns(NamedTuple):
    """Facts of every request, by row.

    Attributes
    ----------
    goes_on : 1 if a later request of its session follows
    past_pause : mean seconds of the pauses of its session so far; where it has had none, of all
        pauses before in the trace; 0 if there is none
    hint_ttl, hint_priority : columns of the trace; -1 is none
    """

    goes_on: Ints
    past_pause: Floats
    hint_ttl: Floats
    hint_priority: Ints


def turns_of(trace: Trace) -> Turns:
    if not trace.has("session_id"):
        nothing = np.broadcast_to(0, len(trace))
        return Turns(nothing, nothing, trace.hint_ttl, trace.hint_priority)
    before = turn_before(trace)
    is_turn = before >= 0
    goes_on = np.zeros(len(trace), np.int64)
    goes_on[before[is_turn]] = 1
    pauses = np.where(is_turn, pauses_of(trace, before), 0.0)
    order = np.argsort(trace.session_id, kind="stable")
    sums, counts = _within(pauses[order], before[order]), _within(is_turn[order], before[order])
    total, number = np.cumsum(pauses), np.cumsum(is_turn)
    past = total / np.maximum(number, 1)
    has_own = counts > 0
    past[order[has_own]] = sums[has_own] / counts[has_own]
    return Turns(goes_on, past, trace.hint_ttl, trace.hint_priority)


def turn_before(trace: Trace) -> Ints:
    """Return the row of the turn before in the session, -1 for a first turn or no session."""
    order = np.argsort(trace.session_id, kind="stable")
    session = trace.session_id[order]
    follows = np.zeros(len(order), bool)
    follows[1:] = (session[1:] == session[:-1]) & (session[1:] >= 0)
    before = np.full(len(order), -1, np.int64)
    before[order[1:]] = np.where(follows[1:], order[:-1], -1)
    return before


def pauses_of(trace: Trace, before: Ints) -> Floats:
    """Return the seconds from an answer to the next turn.

    For a turn that does not wait it is the time between both arrivals, service included.
    """
    planned = trace.arrival_time - trace.arrival_time[before]
    return np.where(np.diff(trace.after_offsets) > 0, trace.think_time, planned)


def _within(values: NDArray[np.generic], before: Ints) -> Floats:
    """Return sums up to each row, over the rows of its session, which are adjacent."""
    sums = np.cumsum(values, dtype=np.float64)
    first = np.maximum.accumulate(np.where(before < 0, np.arange(len(before)), 0))
    return sums - np.where(first > 0, sums[first - 1], 0.0)


def by_program(trace: Trace, ttl: float) -> Trace:
    """Return a trace with priorities: earlier programs go first, held ones before all others.

    A program is a session with its sub-agents. A turn finds its blocks held if its pause is at most
    ``ttl`` seconds and :func:`holds` says so of the turn before.
    """
    root = roots_of(trace)
    first = np.where(root >= 0, root, np.arange(len(trace)))
    before = turn_before(trace)
    is_held = (before >= 0) & (pauses_of(trace, before) <= ttl)
    is_held &= holds(turns_of(trace), ttl)[before]
    priority = first - len(trace) * is_held
    priority.flags.writeable = False
    return replace(trace, priority=priority)


def holds(turns: Turns, ttl: float) -> NDArray[np.bool_]:
    """Return True where Continuum holds the blocks: the session goes on, its pauses are short."""
    return (turns.goes_on > 0) & (turns.past_pause <= ttl)
