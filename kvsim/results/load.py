"""Saturation of a server, and its bottleneck.

A server is ``saturated`` if its backlog grows through the arrivals and never clears. The backlog is
the number of requests that wait for their first token; its minimum in the last quarter of the
arrivals must exceed its minimum in the second quarter by more than random variation. Minima are
compared because a server that keeps up empties its queue now and then. The first quarter does not
count, since the replicas still fill up. If the arrival rate exceeds the service rate by a share x,
the minima differ by about x N / 2 for N requests.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Load = Mapping[str, Any]

#: Limits of the served rate. ``arrivals``: no resource limits it, and all requests are served.
Cause = Literal[
    "max_num_seqs", "max_num_batched_tokens", "kv_cache", "arrivals", "prefill", "decode", "link"
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
#: Instants, evenly spaced through the arrivals, at which waiting requests are counted.
INSTANTS = 400
#: A queue grows if it gains more than this share of all requests, and more than this multiple of
#: the square root of their number, the standard deviation of Poisson arrivals. In 200 M/D/1 queues
#: of 1,000 requests no queue grew at 90 % of its capacity, and all did at 120 %.
LEAST_SHARE, LEAST_DEVIATIONS = 0.02, 0.7


def offered_rate(
    requests: NDArray[Any], planned_time: NDArray[np.float64], *, is_closed: bool
) -> float | None:
    """Return the requests per second between the first and the last request sent.

    None if all arrived at once, or if clients held requests back: then the server sets the rate.

    Parameters
    ----------
    requests : the requests table, shape (requests,)
    planned_time : planned send time of each request, seconds, shape (requests,)
    is_closed : clients limit the requests or sessions in flight (``max_concurrency``, ``lanes``)
    """
    sent = np.ascontiguousarray(requests["finish_reason"]) != FinishReason.UNSENT
    times = requests["arrival_time"][sent]
    if is_closed and bool((times != planned_time[sent]).any()):
        return None
    seconds = float(times.max() - times.min()) if len(times) else 0.0
    return (len(times) - 1) / seconds if seconds > 0 else None


def backlog_grows(requests: NDArray[Any], others: NDArray[np.int64] | None = None) -> bool:
    """Return True if the queue grows during the arrivals; the module's docstring has the rule.

    Parameters
    ----------
    requests : the requests table; rejected and unsent ones do not count
    others : numbers of requests that wait after their first token, at the times of :func:`instants`
    """
    reasons = np.ascontiguousarray(requests["finish_reason"])
    counts = (reasons != FinishReason.REJECTED) & (reasons != FinishReason.UNSENT)
    times = instants(requests)
    number = int(counts.sum())
    if not number or times[-1] == times[0]:
        return False
    arrivals, begins = requests["arrival_time"], requests["first_token_time"]
    if number < len(counts):
        arrivals, begins = arrivals[counts], begins[counts]
    waiting = _num_before(arrivals, times) - _num_before(begins, times)
    if others is not None:
        waiting += others
    quarter = INSTANTS // 4
    before, after = waiting[quarter : 2 * quarter + 1].min(), waiting[3 * quarter :].min()
    chance = max(LEAST_SHARE * number, LEAST_DEVIATIONS * math.sqrt(number))
    return bool(after - before > chance)


def instants(requests: NDArray[Any]) -> NDArray[np.float64]:
    """Return evenly spaced times from the first arrival to the last, in seconds."""
    arrivals = requests["arrival_time"]
    sent = np.ascontiguousarray(requests["finish_reason"]) != FinishReason.UNSENT
    if not sent.all():
        arrivals = arrivals[sent]
    begin, end = (float(arrivals.min()), float(arrivals.max())) if len(arrivals) else (0.0, 0.0)
    return np.linspace(begin, end, INSTANTS + 1)


def _num_before(events: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the number of events before each of evenly spaced times; NaN is no event."""
    places = events - times[0]
    with np.errstate(over="ignore", invalid="ignore"):  # the times may be nearly equal
        places *= INSTANTS / (times[-1] - times[0])
    np.copyto(places, INSTANTS, where=~(places < INSTANTS))
    counts = np.bincount(places.astype(np.int64), minlength=INSTANTS + 1)
    number = np.zeros(INSTANTS + 1, np.int64)
    np.cumsum(counts[:INSTANTS], out=number[1:])
    return number


def average_loads(loads: Sequence[Load]) -> dict[str, Any]:
    """Return the mean rates of several runs, whether any is saturated, and the main bottleneck."""
    found: dict[str, Any] = {}
    for name in ("offered_request_rate", "served_request_rate"):
        values = [one[name] for one in loads]
        known = all(value is not None for value in values)
        found[name] = math.fsum(values) / len(values) if known else None
    told = [one["saturated"] for one in loads if one["saturated"] is not None]
    found["saturated"] = any(told) if told else None
    counted = [one for one in loads if one["saturated"]] or loads
    found["binding"] = Counter(one["binding"] for one in counted).most_common(1)[0][0]
    return found


def overload(load: Load | None) -> str | None:
    """Return a text if a server is known not to keep up with arrivals, else None.

    Examples
    --------
    >>> overload({"offered_request_rate": 10.0, "served_request_rate": 3.8, "saturated": True,
    ...           "binding": "max_num_seqs"})[:44]
    'served 3.8 of 10 requests/s: the queue grows'
    """
    if not load or not load["saturated"]:  # earlier versions had no load
        return None
    served, offered = load["served_request_rate"], load["offered_request_rate"]
    rates = f"served {served or 0.0:.2g} of {offered:.3g} requests/s: "
    return (
        f"{rates if offered else ''}the queue grows; TTFT depends on the length of the "
        f"run; bottleneck: {load['binding']}"
    )


def overloads(loads: Mapping[str, Load | None]) -> list[str]:
    """Describe the runs that do not keep up with arrivals: by name, or as counts if many do not."""
    found = {name: said for name, load in loads.items() if (said := overload(load)) is not None}
    if len(loads) == 1:
        return list(found.values())
    if len(found) <= MOST_NAMED:
        return [_together(names, loads) for names in _alike(found, loads)]
    causes = Counter(str((loads[name] or {})["binding"]) for name in found)
    binds = ", ".join(f"{cause} in {number:,}" for cause, number in causes.most_common())
    return [
        f"{len(found):,} of {len(loads):,} do not keep up with their arrivals: the queue "
        f"grows, and TTFT depends on the length of the run; bottlenecks: {binds}"
    ]


def _alike(found: Iterable[str], loads: Mapping[str, Load | None]) -> list[list[str]]:
    """Group the runs with equal offered rate and bottleneck, which share a sentence."""
    groups: dict[Any, list[str]] = {}
    for name in found:
        load = loads[name] or {}
        groups.setdefault((load["offered_request_rate"], load["binding"]), []).append(name)
    return list(groups.values())


def _together(names: list[str], loads: Mapping[str, Load | None]) -> str:
    said = str(overload(loads[names[0]]))
    served = [f"{(loads[name] or {})['served_request_rate'] or 0.0:.2g}" for name in names]
    return f"{', '.join(names)}: " + said.replace(served[0], ", ".join(served), 1)


#: Most runs that are named one by one.
MOST_NAMED = 6
