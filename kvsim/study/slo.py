"""Targets of a run: on its summary, and on its requests.

A predicate such as ``p99_ttft_ms<=1000`` bounds one aggregate of the summary, over the requests
that finished; percentiles are interpolated linearly. Goodput judges every request: a given share of
all requests must meet every target, and a request that was rejected or did not finish misses them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.errors import unknown_name
from kvsim.results.metrics import Pool, summarize
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.results.totals import Totals

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

#: Default share of all requests that must meet the targets of ``--goodput``.
ATTAIN = 0.95
#: Number of requests of which ten lie above the 99th percentile.
ENOUGH_FOR_P99 = 1000
#: Names of the targets that every search adds. The first: requests start as fast as they arrive.
STABLE = "backlog"
#: The second: half the arrivals span at least the mean time that a request stays in a replica, so
#: that the replicas fill up; a shorter trace cannot overload them.
LONG = "long trace"
#: The third: every request that fits was served.
SERVED = "unserved"
#: The fourth: sessions reach the requested rate, though their pauses do not depend on it.
REACHED = "rate of sessions"
GOODPUT = "goodput_attainment"
_PREDICATE = re.compile(r"\s*([A-Za-z][\w-]*)\s*([<>=!~]+)\s*(\S*)\s*")


class Predicate(NamedTuple):
    """A bound on one aggregate of the summary; ``is_upper`` for ``<=``."""

    metric: str
    is_upper: bool
    limit: float

    def __str__(self) -> str:
        return f"{self.metric}{'<=' if self.is_upper else '>='}{self.limit:g}"

    def margin(self, value: float | None) -> float:
        """Return the distance to the bound as a share of the bound; below 0 the target is missed.

        An undefined metric is a miss, since the run has no observation of it.
        """
        if value is None:
            return -math.inf
        left = self.limit - value if self.is_upper else value - self.limit
        return left / abs(self.limit) if self.limit else math.copysign(math.inf, left or 1.0)


@dataclass(frozen=True)
class Slo:
    """All targets of a run.

    Parameters
    ----------
    predicates : bounds on aggregates
    goodput : targets of each request in ms by metric: ttft, tpot, e2el
    attain : share of all requests that must meet every target
    trim : seconds at both ends; requests that arrive in them are served, but not counted
    """

    predicates: tuple[Predicate, ...] = ()
    goodput: tuple[tuple[str, float], ...] = ()
    attain: float = ATTAIN
    trim: float = 0.0

    def __str__(self) -> str:
        told = [str(one) for one in self.predicates]
        if self.goodput:
            targets = " ".join(f"{name}:{limit:g}" for name, limit in self.goodput)
            told.append(f"{100 * self.attain:g} % of requests within {targets} ms")
        return ", ".join(told)

    @property
    def needs_many(self) -> bool:
        """Return True if a target is a 99th percentile."""
        return any(one.metric.startswith("p99") for one in self.predicates)

    def margins(self, summary: Mapping[str, Any]) -> dict[str, float]:
        """Return the distance to each bound, as a share of it."""
        found = {str(one): one.margin(summary[one.metric]) for one in self.predicates}
        if self.goodput:
            bound = Predicate(GOODPUT, is_upper=False, limit=self.attain)
            found[str(bound)] = bound.margin(summary[GOODPUT])
        return found

    def values(self, summary: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the values of the bounded metrics."""
        names = [one.metric for one in self.predicates] + [GOODPUT] * bool(self.goodput)
        return {name: summary[name] for name in names}


def read_slo(
    predicates: Sequence[str], goodput: Mapping[str, float] | None, attain: float | None
) -> Slo:
    """Read targets from the command line.

    Raises
    ------
    ValueError
        In one line, for a wrong predicate, a share out of range, or no target at all.
    """
    if attain is not None and not goodput:
        raise ValueError("--attain needs --goodput, the targets of a request")
    if attain is not None and not 0 < attain <= 1:
        raise ValueError(f"--attain {attain:g}: must be above 0 and at most 1")
    if not predicates and not goodput:
        raise ValueError('no target: give --slo "p99_ttft_ms<=1000" or --goodput ttft:1000 tpot:30')
    bounds = tuple(read_predicate(text) for text in predicates)
    return Slo(bounds, tuple((goodput or {}).items()), ATTAIN if attain is None else attain)


def read_predicate(text: str) -> Predicate:
    """Read ``METRIC<=NUMBER`` or ``METRIC>=NUMBER``.

    Raises
    ------
    ValueError
        For an unknown metric (the message has similar names), another operator, or a value that is
        not a number.

    Examples
    --------
    >>> read_predicate("p99_ttft_ms<=1000")
    Predicate(metric='p99_ttft_ms', is_upper=True, limit=1000.0)
    """
    found = _PREDICATE.fullmatch(text)
    if found is None:
        raise ValueError(f"--slo {text}: must be METRIC<=NUMBER or METRIC>=NUMBER")
    metric, operator, number = found[1].replace("-", "_"), found[2], found[3]
    if operator not in ("<=", ">="):
        raise ValueError(f"--slo {text}: {operator} is neither <= nor >=")
    if metric in ("request_goodput", GOODPUT):
        raise ValueError(f"--slo {text}: goodput is per request; give --goodput and --attain")
    if metric not in aggregates():
        raise ValueError(f"--slo: {unknown_name('metric', metric, aggregates())}")
    try:
        limit = float(number)
    except ValueError:
        raise ValueError(f"--slo {text}: {number!r} is not a number") from None
    if not math.isfinite(limit):
        raise ValueError(f"--slo {text}: must be finite")
    return Predicate(metric, operator == "<=", limit)


@cache
def aggregates() -> tuple[str, ...]:
    """Return the names that a predicate may use: the summary's single numbers."""
    row: NDArray[Any] = np.zeros(1, dtype=REQUESTS)
    row["finish_reason"] = FinishReason.FINISHED
    row["num_output_tokens"] = 1
    summary = summarize(row, [Totals()], Pool(1, 1, 1, 1), end_time=1.0)
    left_out = {"request_goodput", GOODPUT}
    return tuple(n for n, v in summary.items() if n not in left_out and not isinstance(v, dict))
