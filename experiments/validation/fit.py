"""Fitting a formula, or a simulation, to measured times."""

from __future__ import annotations

from typing import Any

import numpy as np


def fit(
    seconds: Any, start: tuple[float, ...], target: Any, *, steps: int = 80, nudge: float = 1e-4
) -> Any:
    """Minimise the sum of absolute log errors: Levenberg-Marquardt on reweighted squares.

    ``nudge`` is the relative change that shows a slope; a simulation needs more than a formula.
    """

    def residuals(x: Any) -> Any:
        return np.log(np.asarray(seconds(np.exp(x))) / target)

    x, damping = np.log(np.array(start)), 1e-2
    r = residuals(x)
    for _ in range(steps):
        shifted = [residuals(x + nudge * unit) for unit in np.eye(len(x))]
        slope = (np.stack(shifted, axis=1) - r[:, None]) / nudge
        weight = 1 / np.maximum(np.abs(r), 0.02)
        square = slope.T @ (slope * weight[:, None])
        step = np.linalg.solve(
            square + damping * np.diag(np.diag(square) + 1e-9), -slope.T @ (r * weight)
        )
        new = residuals(x + step)
        if np.abs(new).sum() < np.abs(r).sum():
            x, r, damping = x + step, new, damping / 2
        else:
            damping *= 4
    return np.exp(x)
