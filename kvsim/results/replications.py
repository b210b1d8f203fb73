"""Several runs of one configuration with different seeds: means and confidence intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.results.load import average_loads

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Student's t, two-sided 95 %, by degrees of freedom (1 to 30); normal beyond.
T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t95(degrees: int) -> float:
    """Return Student's t, two-sided 95 %, for ``degrees`` degrees of freedom.

    Examples
    --------
    >>> t95(1), t95(4), t95(1000)
    (12.706, 2.776, 1.96)
    """
    return T95[degrees - 1] if degrees <= len(T95) else 1.96


def average(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average summaries key by key; one summary is returned as it is.

    With several, ``replications`` is their number, and ``ci95`` the half-width of the 95 %
    confidence interval of each mean. A value that is None in some run is None. A mean of counts is
    an integer if it has no fraction.
    """
    if len(summaries) == 1:
        return summaries[0]
    means, widths = _average(summaries)
    if any(one.get("scaling") for one in summaries):  # replica k of two runs has nothing in common
        means["replicas"] = None
    return {**means, "replications": len(summaries), "ci95": widths}


def average_workloads(workloads: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Average the descriptions of the requests of several runs; the digest becomes None."""
    if len(workloads) == 1:
        return workloads[0]
    means, _ = _average(workloads)
    return {**means, "digest": None, "replications": len(workloads)}


def _average(summaries: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    means: dict[str, Any] = {}
    widths: dict[str, Any] = {}
    for key in summaries[0]:
        means[key], width = _average_of(key, [summary[key] for summary in summaries])
        if width is not None:
            widths[key] = width
    return means, widths


def _average_of(key: str, values: Sequence[Any]) -> tuple[Any, Any]:
    """Return the mean of a key's values and the half-width of its interval, None if undefined."""
    kinds = {type(value) for value in values}
    if key in ("timeline", "failures"):  # events of one run have no mean
        return None, None
    if key in ("rejections", "branches"):
        names = sorted(set().union(*values))
        return {n: sum(v.get(n, 0) for v in values) / len(values) for n in names}, None
    if key == "load":
        return average_loads(values), None
    if kinds == {dict}:
        return _average(values)
    if list in kinds and len(set(map(_size, values))) > 1:
        return None, None  # the runs have different replicas or tenants
    if list in kinds:  # replicas or tenants, one by one
        return [_average(rows)[0] for rows in zip(*values, strict=True)], None
    if isinstance(values[0], str):
        return values[0], None
    return (None, None) if None in values else _mean_and_width(values)


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list) else -1


def _mean_and_width(values: Sequence[float]) -> tuple[float, float]:
    n = len(values)
    mean = math.fsum(values) / n
    if mean.is_integer() and all(isinstance(value, int) for value in values):
        mean = int(mean)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    return mean, t95(n - 1) * math.sqrt(variance / n)
