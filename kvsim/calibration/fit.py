"""Weighted least-squares fit of a few numbers, with intervals, by damped Gauss-Newton steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.results.replications import t95

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

#: Largest number of steps, and the change of a number from which a slope is computed. Simulations
#: are not smooth: a smaller change would show their noise.
STEPS, NUDGE = 8, 0.05
#: Largest change of a number in a step, in units.
FARTHEST = 1.0
#: The fit ends with a step that reduces the sum of squares by less than this share.
ENOUGH = 1e-3
#: Least relative standard deviation of a figure between benchmark runs, even if the fit is better:
#: a few figures agree by chance.
REPEATS = 0.01
#: Least eigenvalue, as a share of the largest one; smaller ones are raised to it.
SINGULAR = 1e-10
#: The spread of one kind of residual includes the overall spread, with the weight of this number of
#: residuals of the kind.
SHARED = 2.0


class Fitted(NamedTuple):
    """A fit.

    Attributes
    ----------
    x : the numbers
    half_widths : half-widths of their 95 % intervals, by Student's t
    slope : slope of the residuals along each number at ``x``, shape (residuals, numbers)
    residuals, weights : residuals at ``x``, and their weights
    """

    x: Floats
    half_widths: Floats
    slope: Floats
    residuals: Floats
    weights: Floats

    def moved_by(self, column: Floats) -> Floats:
        """Return the change of the fitted numbers that offsets one unit of a number not fitted.

        ``column`` is the slope of the residuals along the number not fitted.
        """
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
    """Find the numbers that minimise the squared residuals; each kind has its own spread.

    Parameters
    ----------
    residuals : function of the numbers; it returns more residuals than there are numbers
    start, bounds : initial value and range (low, high) of each number
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
    """Estimate, by one linear step, the fit with number ``place`` fixed at ``start``."""
    slope = np.delete(found.slope, place, axis=1)
    back = found.residuals + found.slope[:, place] * (start - found.x[place])
    x, r, weights = np.delete(found.x, place), back, found.weights
    if slope.shape[1]:
        for _ in range(2):  # again with the spreads of the new residuals
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
    """Return numbers and residuals after one damped step; None if the fit does not improve."""
    square = slope.T @ (slope * weights[:, None])
    ridge = damping * np.diag(np.diag(square) + 1e-12)
    step = -np.linalg.solve(square + ridge, slope.T @ (r * weights))
    new = np.clip(x + np.clip(step, -FARTHEST, FARTHEST), *bounds)
    found = residuals(new)
    return (new, found) if weights @ found**2 < weights @ r**2 else None


def slope_of(residuals: Callable[[Floats], Floats], x: Floats, r: Floats) -> Floats:
    """Return the slope of the residuals along each number, shape (residuals, numbers)."""
    moved = [residuals(x + NUDGE * unit) for unit in np.eye(len(x))]
    return (np.stack(moved, axis=1) - r[:, None]) / NUDGE


def spreads(r: Floats, kinds: Sequence[str], num_fitted: int) -> Floats:
    """Return each residual's standard deviation: its kind's, shrunk towards the overall one."""
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
    sizes = np.maximum(sizes, SINGULAR * sizes[-1])  # indistinguishable numbers give about 0
    variance = max(float(weights @ r**2) / degrees, REPEATS**2 * float(weights.mean()))
    widths[seen] = t95(degrees) * np.sqrt((axes**2 / sizes).sum(axis=1) * variance)
    return widths


def likest(slope: Floats, place: int, others: Sequence[int]) -> tuple[int, float] | None:
    """Return the index of the number with the most similar effect, and the similarity, 0 to 1."""
    own = slope[:, place]
    best = None
    for other in others:
        size = float(np.linalg.norm(own) * np.linalg.norm(slope[:, other]))
        alike = abs(float(own @ slope[:, other])) / size if size else 0.0
        if best is None or alike > best[1]:
            best = (other, alike)
    return best
