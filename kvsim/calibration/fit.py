"""Weighted least squares of a few numbers, with intervals: Gauss-Newton, damped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.results.replications import t95

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Steps at most, and by how much a number is moved to see a slope. A simulation is not a smooth
#: function: a smaller move would show its noise.
STEPS, NUDGE = 8, 0.05
#: The farthest that a number moves at once, in units.
FARTHEST = 1.0
#: A step that lessens the squares by less than this share is the last.
ENOUGH = 1e-3
#: Least relative difference of a benchmark's figure from one run to the next, however good the fit:
#: a few figures agree by chance.
REPEATS = 0.01
#: The least that counts as a direction of its own, as a share of the clearest one.
SINGULAR = 1e-10
#: Residuals of one kind that all residuals stand in for, when its spread is estimated.
SHARED = 2.0


class Fitted(NamedTuple):
    """A fit.

    Attributes
    ----------
    x : the numbers
    half_widths : half-widths of their 95 % intervals, by Student's t over the degrees that are left
    slope : slope of the residuals along each number, at ``x``
    residuals, weights : at ``x``, and how much each counts
    """

    x: Floats
    half_widths: Floats
    slope: Floats
    residuals: Floats
    weights: Floats

    def moved_by(self, column: Floats) -> Floats:
        """Return the change of the numbers that compensates a unit of another one."""
        weighted = self.slope.T * self.weights
        found: Any = np.linalg.lstsq(weighted @ self.slope, weighted @ column, rcond=None)
        return -found[0]  # type: ignore[no-any-return]


def fit(
    residuals: Callable[[Floats], Floats],
    start: Sequence[float] | Floats,
    bounds: Sequence[tuple[float, float]],
    kinds: Sequence[str],
    steps: int = STEPS,
) -> Fitted:
    """Find the numbers that minimise the residuals; each kind of residual has its own spread.

    Parameters
    ----------
    residuals : residuals of the numbers; more residuals than numbers
    start, bounds : first values, and the range of each number
    kinds : kind of each residual
    steps : largest number of steps
    """
    low, high = np.asarray(bounds, dtype=np.float64).T
    x = np.clip(np.asarray(start, dtype=np.float64), low, high)
    r, damping = residuals(x), 1e-3
    weights = np.ones(len(r))
    slope = slope_of(residuals, x, r)
    for _ in range(steps):
        better = _step(residuals, x, r, slope, weights, (low, high), damping)
        if better is None:
            damping *= 10
            if damping > 1e3:
                break
            continue
        gain = 1 - float(weights @ better[1] ** 2) / max(float(weights @ r**2), 1e-300)
        x, r = better
        damping = max(damping / 10, 1e-6)
        weights = spreads(r, kinds, len(x)) ** -2
        slope = slope_of(residuals, x, r)
        if gain < ENOUGH:
            break
    return Fitted(x, _half_widths(slope, r, weights), slope, r, weights)


def without(found: Fitted, place: int, start: float, kinds: Sequence[str]) -> Fitted:
    """Estimate the fit with one number kept at its start, by one linear step."""
    slope = np.delete(found.slope, place, axis=1)
    back = found.residuals + found.slope[:, place] * (start - found.x[place])
    x, r, weights = np.delete(found.x, place), back, found.weights
    if slope.shape[1]:
        for _ in range(2):  # with the spreads of what it leaves
            weighted = slope.T * weights
            step = np.linalg.lstsq(weighted @ slope, -weighted @ back, rcond=None)[0]
            r = back + slope @ step
            weights = spreads(r, kinds, slope.shape[1]) ** -2
        x = x + step
    return Fitted(x, _half_widths(slope, r, weights), slope, r, weights)


def _step(
    residuals: Callable[[Floats], Floats],
    x: Floats,
    r: Floats,
    slope: Floats,
    weights: Floats,
    bounds: tuple[Floats, Floats],
    damping: float,
) -> tuple[Floats, Floats] | None:
    """Move by one damped step; None if it does not improve the fit."""
    square = slope.T @ (slope * weights[:, None])
    ridge = damping * np.diag(np.diag(square) + 1e-12)
    step = -np.linalg.solve(square + ridge, slope.T @ (r * weights))
    new = np.clip(x + np.clip(step, -FARTHEST, FARTHEST), *bounds)
    found = residuals(new)
    return (new, found) if weights @ found**2 < weights @ r**2 else None


def slope_of(residuals: Callable[[Floats], Floats], x: Floats, r: Floats) -> Floats:
    """Return how residuals change along each number."""
    moved = [residuals(x + NUDGE * unit) for unit in np.eye(len(x))]
    return (np.stack(moved, axis=1) - r[:, None]) / NUDGE


def spreads(r: Floats, kinds: Sequence[str], num_fitted: int) -> Floats:
    """Return the standard deviation of each kind of residual, shrunk towards the overall one."""
    free = max(len(r) - num_fitted, 1) / len(r)
    everything = max(float(np.mean(r**2)) / free, 1e-12)
    found = np.empty(len(r))
    for kind in set(kinds):
        own = np.array([k == kind for k in kinds])
        squares = float(np.sum(r[own] ** 2)) + SHARED * free * everything
        found[own] = np.sqrt(squares / (free * (own.sum() + SHARED)))
    return found


def _half_widths(slope: Floats, r: Floats, weights: Floats) -> Floats:
    """Return half the widths of 95 % intervals; infinity for numbers without effect."""
    widths = np.full(slope.shape[1], np.inf)
    seen = np.flatnonzero(np.abs(slope).max(axis=0, initial=0.0) > 0)
    degrees = len(r) - len(seen)
    if degrees < 1 or not len(seen):
        return widths
    square = slope[:, seen].T @ (slope[:, seen] * weights[:, None])
    sizes, axes = np.linalg.eigh(square)
    sizes = np.maximum(sizes, SINGULAR * sizes[-1])  # what is alike has no size, or less
    variance = max(float(weights @ r**2) / degrees, REPEATS**2 * float(weights.mean()))
    widths[seen] = t95(degrees) * np.sqrt((axes**2 / sizes).sum(axis=1) * variance)
    return widths


def likest(slope: Floats, place: int, others: Sequence[int]) -> tuple[int, float] | None:
    """Return the number with the most similar effect on residuals, and the similarity."""
    own = slope[:, place]
    best = None
    for other in others:
        size = float(np.linalg.norm(own) * np.linalg.norm(slope[:, other]))
        alike = abs(float(own @ slope[:, other])) / size if size else 0.0
        if best is None or alike > best[1]:
            best = (other, alike)
    return best
