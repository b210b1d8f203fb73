"""What must hold of every finished run, and of two runs that should be one."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.kv.usage import HELD, WHOLE
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.results.result import Result


def equal_tables(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two structured arrays agree to the bit, field by field; NaN equals NaN."""
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


def check_result(result: Result) -> None:
    """Check what must hold of every finished run; see ARCHITECTURE.md for the numbered invariants.

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
    if math.isinf(result.config.horizon) and len(done) + len(rejected) != len(table):
        _fail(1, f"{len(table) - len(done) - len(rejected)} requests never ended")
    if (done["num_output_tokens"] < 1).any():
        _fail(1, "a request finished without a token")
    times = ("arrival_time", "first_scheduled_time", "first_token_time", "finish_time")
    for earlier, later in pairwise(times):
        wrong = done[~(done[earlier] <= done[later])]
        if len(wrong):
            _fail(5, f"{earlier} is after {later} for requests {wrong['request_id'][:5].tolist()}")


def _check_memory(result: Result) -> None:
    memory, total = result.memory, result.summary["kv_cache"]["bytes"]
    parts = [cause.column for cause in WHOLE]
    held = sum(memory[name] for name in parts)
    if (held != total).any() or any((memory[name] < 0).any() for name in (*parts, "cached")):
        _fail(9, f"bytes by cause do not sum to {total}: {np.unique(held)[:5]}")
    for replica in np.unique(memory["replica"]):
        if (np.diff(memory["time"][memory["replica"] == replica]) < 0).any():
            _fail(5, f"the clock of replica {replica} goes back")
    fractions = [result.summary["kv_cache"][cause.summary_key] for cause in HELD]
    known = [f for f in fractions if f is not None]
    if known and (len(known) != len(fractions) or abs(sum(known) - 1) > 1e-9):
        _fail(9, f"fractions {fractions} do not sum to 1")


def _check_littles_law(result: Result) -> None:
    """Mean requests in the system = arrival rate x mean time in the system."""
    if not math.isinf(result.config.horizon):
        return
    table, summary = result.served, result.summary
    done = table[table["finish_reason"] == FinishReason.FINISHED]
    if not len(done) or not summary["duration"]:
        return
    spent = math.fsum(done["finish_time"] - done["arrival_time"])
    inside = (summary["mean_running"] + summary["mean_waiting"]) * summary["duration"]
    if abs(inside - spent) > 1e-9 * spent:
        _fail(10, f"{inside} request-seconds in the queues, {spent} in the table")
