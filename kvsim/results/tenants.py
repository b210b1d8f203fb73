"""Service of each tenant, and the largest service gap between tenants that wait."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.records.fairness import INPUT_WEIGHT, OUTPUT_WEIGHT
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Floats = NDArray[np.float64]

#: Most tenants whose service is compared, pair by pair: the tenants with the most service.
MOST_COMPARED = 8


def describe_tenants(
    requests: NDArray[Any], trace: Trace, end_time: float, front_end_latency: float = 0.0
) -> dict[str, Any]:
    """Return ``tenants``, one row per tenant in the order of numbers, and ``max_service_gap``.

    Both are None without tenants; requests without a tenant share a row with the name None. Service
    is 1 per prompt token, and :data:`OUTPUT_WEIGHT` per output token, of requests with a first
    token. The gap is that of :func:`largest_gap`, over the pairs of named tenants.

    Parameters
    ----------
    requests : the requests table
    trace : the requests, in the same order
    end_time : time of the last event, seconds; requests in flight get their tokens until then
    front_end_latency : seconds that every TTFT contains outside the server
    """
    if not trace.has("tenant"):
        return {"tenants": None, "max_service_gap": None}
    order = np.argsort(trace.tenant, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(trace.tenant[order])) + 1)
    rows, named = [], []
    for places in groups:
        own = requests[places]
        own = own[own["finish_reason"] != FinishReason.UNSENT]
        row = {"name": trace.tenant_of(int(places[0]))} | _describe(own, front_end_latency)
        rows.append(row)
        if row["name"] is not None:
            named.append((row["service"], own))
    named.sort(key=lambda pair: -pair[0])
    gap = largest_gap([own for _, own in named[:MOST_COMPARED]], end_time)
    return {"tenants": rows, "max_service_gap": gap}


def _describe(own: NDArray[Any], front_end_latency: float) -> dict[str, Any]:
    done = own[own["finish_reason"] == FinishReason.FINISHED]
    ttft = (done["first_token_time"] - done["arrival_time"] + front_end_latency) * 1000.0
    began = own[~np.isnan(own["first_token_time"])]
    return {
        "requests": len(own),
        "completed": len(done),
        "rejected": int((own["finish_reason"] == FinishReason.REJECTED).sum()),
        "mean_ttft_ms": float(ttft.mean()) if len(done) else None,
        "p99_ttft_ms": float(np.percentile(ttft, 99)) if len(done) else None,
        "output_tokens": int(began["num_output_tokens"].sum()),
        "service": int(_inputs(began).sum() + _outputs(began).sum()),
    }


def _inputs(rows: NDArray[Any]) -> NDArray[np.int64]:
    return INPUT_WEIGHT * rows["num_prompt_tokens"].astype(np.int64)


def _outputs(rows: NDArray[Any]) -> NDArray[np.int64]:
    return OUTPUT_WEIGHT * rows["num_output_tokens"].astype(np.int64)


def service_by(rows: NDArray[Any], times: Floats, end_time: float) -> tuple[Floats, Floats]:
    """Return the service that requests have received just before each time, and at that time.

    Prompt tokens count at the first token; output tokens count evenly from then to the request's
    end, or to ``end_time``. The figures of measured runs are computed in the same way, because
    their records have only these times.
    """
    rows = rows[~np.isnan(rows["first_token_time"])]
    first, end = rows["first_token_time"], rows["finish_time"]
    end = np.where(np.isnan(end), end_time, end)
    spent = end > first
    steps = [(first, _inputs(rows)), (first[~spent], _outputs(rows)[~spent])]
    evenly = np.zeros(len(times))
    rate = _outputs(rows)[spent] / (end[spent] - first[spent])
    for begins, sign in ((first[spent], 1.0), (end[spent], -1.0)):
        order = np.argsort(begins, kind="stable")
        slopes = np.concatenate(([0.0], np.cumsum(rate[order])))
        offsets = np.concatenate(([0.0], np.cumsum((rate * begins)[order])))
        at = np.searchsorted(begins[order], times, side="right")
        evenly += sign * (slopes[at] * times - offsets[at])
    before, after = evenly.copy(), evenly
    for instants, amounts in steps:
        order = np.argsort(instants, kind="stable")
        sums = np.concatenate(([0], np.cumsum(amounts[order])))
        before += sums[np.searchsorted(instants[order], times, side="left")]
        after = after + sums[np.searchsorted(instants[order], times, side="right")]
    return before, after


def is_waiting(rows: NDArray[Any], times: Floats) -> NDArray[np.bool_]:
    """Return for each time True if the tenant has unscheduled requests right after it."""
    begin, until = rows["arrival_time"], rows["first_scheduled_time"]
    until = np.where(np.isnan(until), np.inf, until)
    waits = (until > begin) & (rows["finish_reason"] != FinishReason.REJECTED)
    came = np.searchsorted(np.sort(begin[waits]), times, side="right")
    gone = np.searchsorted(np.sort(until[waits]), times, side="right")
    return came > gone


def largest_gap(tenants: list[NDArray[Any]], end_time: float) -> float | None:
    """Return the largest service gap of two tenants over intervals in which both wait.

    An interval counts if both tenants have waiting requests throughout, and requests still arrive.
    The gap is None if no two tenants ever wait together. VTC bounds it by
    ``2 max(w_in L_in, w_out M)``, with L_in the longest prompt and M the tokens of the KV memory.

    Parameters
    ----------
    tenants : the rows of each tenant in the requests table
    end_time : end of the run, seconds
    """
    tenants = [rows for rows in tenants if len(rows)]
    if len(tenants) < 2:
        return None
    every = np.concatenate(tenants)
    last = float(every["arrival_time"].max())
    columns = ("arrival_time", "first_scheduled_time", "first_token_time", "finish_time")
    times = np.unique(np.concatenate([every[name] for name in columns]))
    times = times[times <= last]
    service = [service_by(rows, times, end_time) for rows in tenants]
    waiting = [is_waiting(rows, times)[:-1] for rows in tenants]
    largest = None
    for a, b in combinations(range(len(tenants)), 2):
        at = np.flatnonzero(waiting[a] & waiting[b])
        if not len(at):
            continue
        # From just after the beginning of each interval to just before its end.
        (before_a, after_a), (before_b, after_b) = service[a], service[b]
        begin, end = after_a[at] - after_b[at], before_a[at + 1] - before_b[at + 1]
        first = np.flatnonzero(np.diff(at, prepend=-2) > 1)  # where a contiguous interval begins
        most = np.maximum.reduceat(np.maximum(begin, end), first)
        least = np.minimum.reduceat(np.minimum(begin, end), first)
        largest = max(largest or 0.0, float((most - least).max()))
    return largest
