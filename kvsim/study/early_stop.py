"""Detection of infeasible runs from their first half.

A run that is cut at some time equals the beginning of the whole run. At the cut each request has a
latency, or a waiting time so far, which is a lower bound of its latency. So means and percentiles
of these are lower bounds, too. If a lower bound exceeds a target, the whole run misses the target.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.results.metrics import PERCENTILES
from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.study.slo import Slo

    Floats = NDArray[np.float64]

_LATENCY = re.compile(rf"(mean|{'|'.join(PERCENTILES)})_(ttft|tpot|e2el)_ms")


def is_infeasible(
    slo: Slo, table: NDArray[Any], num_outputs: NDArray[np.int64], now: float, front_end: float
) -> bool:
    """Return True if a truncated run misses a target in every possible continuation.

    Parameters
    ----------
    slo : the targets
    table : the requests table of the cut run
    num_outputs : largest number of output tokens of each request
    now : time of the cut, seconds
    front_end : seconds in every TTFT and E2E, in addition to the server's
    """
    served = table["finish_reason"] != FinishReason.REJECTED
    bounds = lower_bounds(table[served], num_outputs[served], now, front_end)
    for one in slo.predicates:
        found = _LATENCY.fullmatch(one.metric)
        if found is None or not one.is_upper:
            continue
        known = bounds[found[2]][~np.isnan(bounds[found[2]])]
        if len(known) and _reduced(known, found[1]) > one.limit:
            return True
    if not slo.goodput:
        return False
    late = np.zeros(int(served.sum()), dtype=np.bool_)
    for name, limit in slo.goodput:
        late |= bounds[name] > limit  # False for NaN, the TPOT of a single token
    misses = int(late.sum()) + int((~served).sum())
    return (len(table) - misses) / len(table) < slo.attain


def lower_bounds(
    table: NDArray[Any], num_outputs: NDArray[np.int64], now: float, front_end: float
) -> dict[str, Floats]:
    """Return the lowest possible TTFT, TPOT and E2E of each request, in ms."""
    waited = np.maximum(now - table["arrival_time"], 0.0)
    first, finish = table["first_token_time"], table["finish_time"]
    has_begun, has_ended = ~np.isnan(first), ~np.isnan(finish)
    ttft = np.where(has_begun, first - table["arrival_time"], waited) + front_end
    e2el = np.where(has_ended, finish - table["arrival_time"], waited) + front_end
    tokens = np.where(has_ended, table["num_output_tokens"], num_outputs)
    since = np.where(has_begun, np.where(has_ended, finish, np.maximum(now, first)) - first, 0.0)
    tpot = np.full(len(table), math.nan)
    several = tokens > 1
    tpot[several] = since[several] / (tokens[several] - 1)
    return {"ttft": 1e3 * ttft, "tpot": 1e3 * tpot, "e2el": 1e3 * e2el}


def _reduced(values: Floats, kind: str) -> float:
    return float(values.mean() if kind == "mean" else np.percentile(values, PERCENTILES[kind]))
