"""Differences between two configurations over pairs of runs with equal requests."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.results.replications import t95

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: Nested parts of a summary that are compared, too.
PARTS = ("kv_cache", "load", "cost", "sessions")


class Difference(NamedTuple):
    """A metric's difference from the first configuration: its mean, and a 95 % interval.

    ``low`` and ``high`` are None with a single pair. ``percent`` is relative to the first
    configuration's mean, None if this mean is 0.
    """

    mean: float
    low: float | None
    high: float | None
    percent: float | None

    @property
    def is_certain(self) -> bool:
        """Return True if the interval excludes zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def differences(
    first: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]
) -> dict[str, Difference]:
    """Compare summaries pair by pair: each pair served the same requests.

    Effects of the requests, such as a seed's long prompts, are in both runs of a pair and cancel:
    the interval is Student's t over the differences; its degrees of freedom are the pairs minus 1.
    Metrics that are undefined in some run are left out.

    Examples
    --------
    >>> found = differences([{"x": 1.0}, {"x": 5.0}], [{"x": 2.0}, {"x": 6.0}])["x"]
    >>> found.mean, found.low, found.high
    (1.0, 1.0, 1.0)
    """
    found = {}
    ours, theirs = [_flat(one) for one in first], [_flat(one) for one in other]
    for name in ours[0]:
        pairs: list[Any] = [(a[name], b.get(name)) for a, b in zip(ours, theirs, strict=True)]
        if all(_is_number(a) and _is_number(b) for a, b in pairs):
            found[name] = _difference(pairs)
    return found


def _flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a summary, those of its parts as ``part.key``."""
    row = {name: value for name, value in summary.items() if name not in PARTS}
    for part in PARTS:
        row |= {f"{part}.{name}": value for name, value in (summary.get(part) or {}).items()}
    return row


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    n = len(pairs)
    gaps = [b - a for a, b in pairs]
    mean, base = math.fsum(gaps) / n, math.fsum(a for a, _ in pairs) / n
    percent = 100 * mean / abs(base) if base else None
    if n < 2:
        return Difference(mean, None, None, percent)
    variance = math.fsum((gap - mean) ** 2 for gap in gaps) / (n - 1)
    half = t95(n - 1) * math.sqrt(variance / n)
    return Difference(mean, mean - half, mean + half, percent)
