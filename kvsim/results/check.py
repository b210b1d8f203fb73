"""Invariants of every finished run, which ARCHITECTURE.md numbers; and equality of tables."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.errors import UnfinishedError, shown_numbers
from kvsim.kv.usage import HELD, WHOLE
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.results.result import Result

#: Finish reasons of requests that have not ended.
NOT_ENDED = (FinishReason.IN_FLIGHT, FinishReason.UNSENT)
#: Summary keys of features under which a request may be on two replicas at once, or on none.
ELSEWHERE = ("kv_transfers", "scaling", "migration", "flow_control")


def never_ended(result: Result) -> list[int]:
    """Return the requests that have not ended in a run without a horizon."""
    if not math.isinf(result.config.horizon):
        return []
    found: list[int] = np.flatnonzero(np.isin(result.requests["finish_reason"], NOT_ENDED)).tolist()
    return found


def refuse_unfinished(result: Result) -> None:
    """Raise if a run has lost requests; for a fleet, also if it breaks any invariant.

    Raises
    ------
    UnfinishedError
        With the numbers of the requests, or the invariant.
    """
    never, num_replicas = never_ended(result), len(result.summary["replicas"])
    if never:
        many = f"{len(never):,} of {len(result.requests):,} requests have"
        raise UnfinishedError(
            f"the run ended, and {many} not: {shown_numbers(never)}; this is a bug of "
            "kvsim or of a user's part"
        )
    if num_replicas > 1:
        try:
            check_result(result)
        except AssertionError as error:
            raise UnfinishedError(f"the run contradicts itself: {error}") from error


def check_result(result: Result) -> None:
    """Check the invariants of a finished run, as numbered in ARCHITECTURE.md.

    Raises
    ------
    AssertionError
        Naming the invariant and the offending rows.
    """
    _check_requests(result)
    _check_memory(result)
    _check_littles_law(result)


def _fail(invariant: int, what: str) -> None:
    raise AssertionError(f"invariant {invariant}: {what}")


def _check_requests(result: Result) -> None:
    table = result.requests
    if not np.array_equal(table["request_id"], np.arange(len(table))):
        _fail(1, "the requests table does not have one row per request, in order")
    done = table[table["finish_reason"] == FinishReason.FINISHED]
    rejected = table[table["finish_reason"] == FinishReason.REJECTED]
    if np.isnan(done["finish_time"]).any() or not np.isnan(rejected["finish_time"]).all():
        _fail(1, "a finished request has no finish time, or a rejected one has")
    never = never_ended(result)
    if never:
        _fail(1, f"{len(never):,} requests never ended: {shown_numbers(never)}")
    if (done["num_output_tokens"] < 1).any():
        _fail(1, "a request finished without a token")
    times = ("arrival_time", "first_scheduled_time", "first_token_time", "finish_time")
    for earlier, later in pairwise(times):
        wrong = done[~(done[earlier] <= done[later])]
        if len(wrong):
            _fail(5, f"{earlier} is after {later} for requests {wrong['request_id'][:5].tolist()}")


def _check_memory(result: Result) -> None:
    memory, total = result.memory, result.summary["kv_cache"]["bytes"]
    has_pools = bool(result.summary["pools"])  # which may have memories of different sizes
    parts = [cause.column for cause in WHOLE]
    held = np.sum([memory[name] for name in parts], axis=0)
    if any((memory[name] < 0).any() for name in (*parts, "cached")):
        _fail(9, "bytes of a cause are below 0")
    for replica in np.unique(memory["replica"]):
        rows = memory["replica"] == replica
        whole = held[rows][0] if has_pools else total
        if (held[rows] != whole).any():
            _fail(9, f"bytes by cause do not sum to {whole}: {np.unique(held[rows])[:5]}")
        if (np.diff(memory["time"][rows]) < 0).any():
            _fail(5, f"the clock of replica {replica} goes back")
    fractions = [result.summary["kv_cache"][cause.summary_key] for cause in HELD]
    known = [f for f in fractions if f is not None]
    if known and (len(known) != len(fractions) or abs(sum(known) - 1) > 1e-9):
        _fail(9, f"fractions {fractions} do not sum to 1")


def _check_littles_law(result: Result) -> None:
    """Mean requests in the system = arrival rate x mean time in the system."""
    if not math.isinf(result.config.horizon) or any(result.summary[name] for name in ELSEWHERE):
        return
    table, summary = result.served, result.summary
    left = (FinishReason.FINISHED, FinishReason.FAILED)
    done = table[np.isin(table["finish_reason"], left)]
    if not len(done) or not summary["duration"]:
        return
    spent = math.fsum(done["finish_time"] - done["arrival_time"])
    inside = (summary["mean_running"] + summary["mean_waiting"]) * summary["duration"]
    if abs(inside - spent) > 1e-9 * spent:
        _fail(10, f"{inside} request-seconds in the queues, {spent} in the table")


def equal_tables(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Return True if two structured arrays agree to the bit, field by field; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    for name in a.dtype.names or ():
        x, y = a[name], b[name]
        same = x == y
        if np.issubdtype(x.dtype, np.floating):
            same |= np.isnan(x) & np.isnan(y)
        if not same.all():
            return False
    return True
