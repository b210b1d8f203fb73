"""Forecast of the next interval's traffic from earlier intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from kvsim.fleet.scaling.traffic import Traffic

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: ``constant``: the next interval equals the last one.
Predictor = Literal["constant", "kalman"]

#: Transition matrix: a level changes by its trend.
STEP = np.array([[1.0, 1.0], [0.0, 1.0]])


class Trend:
    """A Kalman filter of a level and its trend, both random walks.

    Source: ``KalmanPredictor`` in components/src/dynamo/planner/core/load/predictors.py at 260b6ae,
    with the planner's defaults.

    Parameters
    ----------
    level_noise, trend_noise : variance of the change of level and trend between two values
    noise : variance of a value around its level

    Examples
    --------
    >>> trend = Trend()
    >>> trend.next(10.0)
    10.0
    >>> round(trend.next(20.0), 3)
    24.923
    """

    def __init__(
        self, *, level_noise: float = 1.0, trend_noise: float = 0.1, noise: float = 10.0
    ) -> None:
        self._wander, self._noise = np.diag([level_noise, trend_noise]), noise
        self._state: NDArray[np.float64] | None = None
        self._spread = 1000.0 * np.eye(2)

    def next(self, value: float) -> float:
        """Add a value; return the prediction of the next one. Mutates."""
        if self._state is None:
            self._state = np.array([value, 0.0])
        else:
            gain = self._spread[:, 0] / (self._spread[0, 0] + self._noise)
            self._state = self._state + gain * (value - self._state[0])
            self._spread = self._spread - np.outer(gain, self._spread[0])
        self._state = STEP @ self._state
        self._spread = STEP @ self._spread @ STEP.T + self._wander
        return float(self._state[0])


class Forecast:
    """Predicts an interval's number of requests, prompt tokens and output tokens from earlier ones.

    Parameters
    ----------
    predictor : predictor of each of the three numbers; ``kalman`` is :class:`Trend`
    """

    def __init__(self, predictor: Predictor) -> None:
        self._trends = None if predictor == "constant" else [Trend() for _ in range(3)]

    def next(self, traffic: Traffic) -> Traffic:
        """Add an interval; return the prediction of the next one. Mutates."""
        if self._trends is None:
            return traffic
        number, prompt, output = (
            trend.next(value) for trend, value in zip(self._trends, traffic[:3], strict=True)
        )
        return Traffic(max(number, 0.0), max(prompt, 1.0), max(output, 1.0), traffic.hit_rate)
