"""Turns of sessions: their pauses, and the clients' hints for their blocks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.trace.cuts import with_columns
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
    past_pause : mean pause of its session so far, seconds; for a session without pauses so far, the
        mean of all earlier pauses in the trace; 0 if there is none
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
    """Return the row of the session's previous turn; -1 for a first turn, or without a session."""
    order = np.argsort(trace.session_id, kind="stable")
    session = trace.session_id[order]
    follows = np.zeros(len(order), bool)
    follows[1:] = (session[1:] == session[:-1]) & (session[1:] >= 0)
    before = np.full(len(order), -1, np.int64)
    before[order[1:]] = np.where(follows[1:], order[:-1], -1)
    return before


def pauses_of(trace: Trace, before: Ints) -> Floats:
    """Return the seconds between each turn and the answer to its previous turn ``before``.

    For a turn with a planned arrival it is the time between the arrivals, service included.
    """
    planned = trace.arrival_time - trace.arrival_time[before]
    return np.where(np.diff(trace.after_offsets) > 0, trace.think_time, planned)


def with_pauses_cut(trace: Trace, longest: float) -> Trace:
    """Return a trace whose think times are at most ``longest`` seconds."""
    return with_columns(trace, think_time=np.minimum(trace.think_time, longest))


def pauses_note(trace: Trace, longest: float) -> str:
    """Return how many pauses of a trace a limit cuts, and what it leaves of them."""
    pauses = trace.think_time[np.diff(trace.after_offsets) > 0]
    left = np.minimum(pauses, longest).sum() / pauses.sum() if pauses.any() else 1.0
    return (
        f"max_think_time = {longest:g}: {int((pauses > longest).sum()):,} of {len(pauses):,} "
        f"pauses are cut, {100 * left:.1f} % of their time is left, which limits gains of retention"
    )


def _within(values: NDArray[np.generic], before: Ints) -> Floats:
    """Return the sum up to each row over the rows of its session, which must be adjacent."""
    sums = np.cumsum(values, dtype=np.float64)
    first = np.maximum.accumulate(np.where(before < 0, np.arange(len(before)), 0))
    return sums - np.where(first > 0, sums[first - 1], 0.0)


def by_program(trace: Trace, ttl: float) -> Trace:
    """Return a trace with priorities: turns with held blocks first, then earlier programs.

    A program is a session with its sub-agents. The blocks of a turn are held if its pause is at
    most ``ttl`` seconds and :func:`holds` is true for the previous turn.
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
    """Return True where Continuum holds a turn's blocks: a turn follows, and pauses are short."""
    return (turns.goes_on > 0) & (turns.past_pause <= ttl)
