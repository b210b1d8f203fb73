"""OpenMetrics text: metric families with samples over time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]


class Observed(NamedTuple):
    """Observations of a histogram.

    ``times`` are in seconds; ``counts`` says how often each of the ``values`` was observed, by
    default once.
    """

    times: Floats
    values: Floats
    counts: Floats | None = None


def number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    is_whole = float(value).is_integer() and abs(value) < 1e15
    return str(int(value)) if is_whole else repr(float(value))


def labels(pairs: Mapping[str, str]) -> str:
    """Return labels in braces, their values escaped."""
    shown = []
    for name, value in pairs.items():
        safe = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        shown.append(f'{name}="{safe}"')
    return "{" + ",".join(shown) + "}"


def family(name: str, kind: str, text: str) -> list[str]:
    """Return the TYPE and HELP lines of a metric family."""
    return [f"# TYPE {name} {kind}", f"# HELP {name} {text}"]


def series(
    name: str, pairs: Mapping[str, str], times: Sequence[float], values: ArrayLike
) -> Iterator[str]:
    """Yield one sample per time."""
    shown = labels(pairs)
    for time, value in zip(times, np.asarray(values).tolist(), strict=True):
        yield f"{name}{shown} {number(value)} {number(time)}"


def histogram(
    name: str,
    pairs: Mapping[str, str],
    buckets: Sequence[float],
    seen: Observed,
    times: Sequence[float],
) -> Iterator[str]:
    """Yield buckets, count and sum at each time, without observations after the last time."""
    weights = np.ones(len(seen.values)) if seen.counts is None else seen.counts
    edges, at = np.array([*buckets, math.inf]), np.array(times)
    point = np.searchsorted(at, seen.times)  # the first time that includes the observation
    inside = point < len(at)
    place = np.searchsorted(edges, seen.values[inside])
    counts, sums = np.zeros((len(at), len(edges))), np.zeros(len(at))
    np.add.at(counts, (point[inside], place), weights[inside])
    np.add.at(sums, point[inside], (weights * seen.values)[inside])
    counts, sums = counts.cumsum(axis=0).cumsum(axis=1), sums.cumsum()
    heads = [
        f"{name}_bucket{labels({**pairs, 'le': edge})}"
        for edge in [*map(repr, edges.tolist()[:-1]), "+Inf"]
    ]
    shown = labels(pairs)
    for k, time in enumerate(number(one) for one in times):
        for head, value in zip(heads, counts[k].tolist(), strict=True):
            yield f"{head} {number(value)} {time}"
        yield f"{name}_count{shown} {number(counts[k, -1])} {time}"
        yield f"{name}_sum{shown} {number(sums[k])} {time}"
