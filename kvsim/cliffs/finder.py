"""Jumps of a measured quantity: a grid of values, then bisection of the largest jumps."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: Values of the first grid.
GRID = 9
#: Ratio of high to low above which the grid is logarithmic.
LOGARITHMIC = 20.0
#: Least size of a jump: difference of hit rates, and ratio of times to first token.
HIT_POINTS, TTFT_RATIO = 0.10, 2.0
#: A jump is more than this many times the difference that the neighbouring slope explains.
OVER_SLOPE = 3.0
#: The half with the smaller difference is searched, too, if it has this share of the whole jump.
SECOND_HALF = 0.25
#: Width of an interval at which a search over real numbers ends, as a share of its lower value.
NARROW = 0.005


class Point(NamedTuple):
    """Results of a run at one value: hits as a share of prompt tokens, TTFT in seconds."""

    value: float
    hits: float
    p50_ttft: float
    p90_ttft: float


class Jump(NamedTuple):
    """Two neighbouring points; ``is_narrow`` if they are as close as the step allows."""

    below: Point
    above: Point
    is_narrow: bool = True


class Found(NamedTuple):
    """Jumps, steep slopes that are not jumps, and all measured points, each in order of value."""

    jumps: list[Jump]
    slopes: list[Jump]
    points: list[Point]


def size_of(a: Point, b: Point) -> float:
    """Return the difference of two points in units of the least jump."""
    sizes = [abs(b.hits - a.hits) / HIT_POINTS]
    for one, other in ((a.p50_ttft, b.p50_ttft), (a.p90_ttft, b.p90_ttft)):
        if one > 0 and other > 0:
            sizes.append(abs(np.log(other / one)) / np.log(TTFT_RATIO))
    return float(max(sizes))


def find_jumps(
    measure: Callable[[float], Point],
    low: float,
    high: float,
    *,
    step: float | None,
    most: int = 60,
) -> Found:
    """Find the jumps of a measured quantity between two values.

    Parameters
    ----------
    measure : runs the deployment at one value
    low, high : ends of the range, low < high
    step : smallest difference of two values; None for real numbers
    most : largest number of runs

    Notes
    -----
    If bisection divides a jump into parts that are all below the threshold, it is a slope. Jumps
    inside one interval of the grid that cancel each other are not found.
    """
    points: dict[float, Point] = {}

    def at(value: float) -> Point:
        if value not in points:
            points[value] = measure(value)
        return points[value]

    grid = [at(value) for value in grid_of(low, high, step)]
    todo = candidates(grid)
    jumps: list[Jump] = []
    slopes: list[Jump] = []
    while todo:
        todo.sort(key=lambda one: size_of(one.below, one.above))
        wide = todo.pop()
        middle = _middle(wide.below.value, wide.above.value, step)
        if middle is None or len(points) >= most:
            jumps.append(wide._replace(is_narrow=middle is None))
            continue
        kept = _halves(wide, at(middle))
        todo += [one for one in kept if size_of(one.below, one.above) >= 1]
        if all(size_of(one.below, one.above) < 1 for one in kept):
            slopes.append(wide)
    return Found(sorted(jumps), sorted(slopes), sorted(points.values()))


def grid_of(low: float, high: float, step: float | None) -> list[float]:
    """Return the values of the first runs, from ``low`` to ``high``, rounded to steps."""
    values = np.linspace(low, high, GRID)
    if low > 0 and high / low > LOGARITHMIC:
        values = np.geomspace(low, high, GRID)
    if step is None:
        return [float(value) for value in values]
    on_grid = np.unique(low + np.round((values - low) / step) * step)
    return [float(value) for value in on_grid if value <= high]


def candidates(grid: Sequence[Point]) -> list[Jump]:
    """Return neighbours that differ by a jump which the neighbouring slope does not explain."""
    sizes = [size_of(a, b) for a, b in pairwise(grid)]
    widths = [b.value - a.value for a, b in pairwise(grid)]
    found = []
    for k, (a, b) in enumerate(pairwise(grid)):
        beside = [sizes[j] / widths[j] for j in (k - 1, k + 1) if 0 <= j < len(sizes)]
        explained = min(beside, default=0.0) * widths[k]
        if sizes[k] >= 1 and sizes[k] > OVER_SLOPE * explained:
            found.append(Jump(a, b))
    return found


def _middle(low: float, high: float, step: float | None) -> float | None:
    """Return the next value to measure; None if the interval cannot be halved."""
    if step is None:
        return None if high - low <= NARROW * abs(low) else (low + high) / 2
    steps = round((high - low) / step)
    return None if steps < 2 else low + (steps // 2) * step


def _halves(wide: Jump, middle: Point) -> list[Jump]:
    """Return the halves of a jump with at least ``SECOND_HALF`` of its size."""
    halves = [Jump(wide.below, middle), Jump(middle, wide.above)]
    least = SECOND_HALF * size_of(wide.below, wide.above)
    return [one for one in halves if size_of(one.below, one.above) >= least]
