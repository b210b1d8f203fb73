"""Fit those constants of a server that its benchmarks determine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.calibration.fit import STEPS, Fitted, fit, likest, slope_of, without
from kvsim.calibration.parameters import KNOBS, Parameter, default_of
from kvsim.calibration.simulated import Simulator, Targets, targets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.calibration.bench import Measured
    from kvsim.calibration.fit import Floats

#: The data cannot distinguish two quantities whose effects on the figures have at least this
#: cosine.
ALIKE = 0.95
#: A quantity has no visible effect if one unit of it changes every figure by less than this share.
UNSEEN = 0.02
#: Steps of the first fit, of all quantities; it shows which quantities the data do not determine.
LOOK = 2
#: Half the width of a normal 95 % interval, in standard deviations.
Z95 = 1.96


class Estimate(NamedTuple):
    """A fitted quantity: value, default, 95 % interval, and the reason if it is unchanged."""

    name: str
    what: str
    default: float
    value: float
    low: float | None
    high: float | None
    reason: str = ""


class Error(NamedTuple):
    """Errors of a run by figure: simulated over measured - 1, percent, before and after the fit."""

    name: str
    before: dict[str, float]
    after: dict[str, float]


class Calibration(NamedTuple):
    """Result of a calibration.

    Attributes
    ----------
    estimates : the estimate of every constant
    values : the constants that the data determine, by name
    errors : errors of each run used for fitting
    held_out : errors of the other runs
    """

    estimates: list[Estimate]
    values: dict[str, float]
    errors: list[Error]
    held_out: list[Error]


def calibrate(
    options: Mapping[str, Any],
    runs: Sequence[Measured],
    held_out: Sequence[Measured] = (),
    *,
    on_progress: Callable[[int], object] = lambda done: None,
) -> Calibration:
    """Fit the constants that runs of a server determine.

    Parameters
    ----------
    options : options of the server, from :func:`kvsim.calibration.server.server_of`
    runs, held_out : runs used for fitting, and runs on which the fit is tested
    on_progress : called with the number of times that all runs have been simulated so far

    Raises
    ------
    ValueError
        If the runs record no latency, or the server could not serve them.
    """
    simulator, targets = Simulator(options), targets_of(runs)
    if not len(targets.values):
        raise ValueError("--bench: the results have neither TTFT nor TPOT")
    parameters = [
        parameter for parameter in KNOBS if parameter.name not in simulator.config.model_fields_set
    ]
    starts = {parameter.name: default_of(parameter, simulator.card) for parameter in parameters}
    seen: dict[tuple[float, ...], Any] = {}

    def residuals_of(parameters: Sequence[Parameter]) -> Callable[[Floats], Floats]:
        return _residuals(simulator, runs, targets, parameters, starts, seen, on_progress)

    everything = parameters
    x = np.array([_begin(parameter, starts) for parameter in parameters])
    first = residuals_of(parameters)
    columns = dict(zip(starts, slope_of(first, x, first(x)).T, strict=True))
    reasons: dict[str, str] = {}
    while len(parameters) >= len(targets.values):  # a fit needs more figures than constants
        reasons[parameters[-1].name] = (
            f"{len(targets.values)} measured figures determine fewer constants"
        )
        parameters, x = parameters[:-1], x[:-1]
    found, steps = None, LOOK
    while parameters:
        found = fit(residuals_of(parameters), x, _bounds(parameters), targets.kinds, steps)
        decided, found = _decided(parameters, found, targets.kinds, starts, reasons)
        if len(decided) == len(parameters) and steps > LOOK:
            break
        parameters, x, steps = decided, found.x, STEPS
    stay = [parameter for parameter in everything if parameter.name in reasons]
    estimates = {parameter.name: _undecided(parameter, starts, reasons) for parameter in stay}
    values: dict[str, float] = {}
    if found is not None and parameters:
        values = _values(parameters, found.x, starts)
        widths = _widths(found, [(columns[k.name], k.likely) for k in stay])
        estimates |= _estimates(parameters, found, widths, starts)
    return Calibration(
        [estimates[parameter.name] for parameter in everything],
        values,
        _errors(simulator, runs, values),
        _errors(simulator, held_out, values),
    )


def _bounds(parameters: Sequence[Parameter]) -> list[tuple[float, float]]:
    return [(parameter.least, parameter.most) for parameter in parameters]


def _decided(
    parameters: list[Parameter],
    found: Fitted,
    kinds: Sequence[str],
    starts: Mapping[str, float],
    reasons: dict[str, str],
) -> tuple[list[Parameter], Fitted]:
    """Remove quantities that the data do not determine, the widest interval first; add reasons."""
    while parameters and (worst := _worst(parameters, found)) is not None:
        reasons[parameters[worst].name] = _reason(parameters, found, worst)
        found = without(found, worst, _begin(parameters[worst], starts), kinds)
        parameters = parameters[:worst] + parameters[worst + 1 :]
    return parameters, found


def _begin(parameter: Parameter, starts: Mapping[str, float]) -> float:
    """Return the starting value of a quantity, in units: 0 (a factor of 1), or its default."""
    return 0.0 if parameter.is_share else starts[parameter.name] / parameter.unit


def _values(
    parameters: Sequence[Parameter], x: Floats, starts: Mapping[str, float]
) -> dict[str, float]:
    return {
        parameter.name: starts[parameter.name] * math.exp(value)
        if parameter.is_share
        else value * parameter.unit
        for parameter, value in zip(parameters, x.tolist(), strict=True)
    }


def _residuals(
    simulator: Simulator,
    runs: Sequence[Measured],
    targets: Targets,
    parameters: Sequence[Parameter],
    starts: Mapping[str, float],
    seen: dict[tuple[float, ...], Any],
    on_progress: Callable[[int], object],
) -> Callable[[Floats], Floats]:
    """Return a function from numbers to residuals; ``seen`` caches its results."""

    def residuals(x: Floats) -> Floats:
        values = _values(parameters, x, starts)
        key = tuple(values.get(parameter.name, -1.0) for parameter in KNOBS)
        if key not in seen:
            seen[key] = targets.errors(simulator.figures(runs, values))
            on_progress(len(seen))
        found: Floats = seen[key]
        return found

    return residuals


def _worst(parameters: Sequence[Parameter], found: Fitted) -> int | None:
    """Return the index of the widest interval; None if the data determine all quantities."""
    widths = [
        w / parameter.precise for w, parameter in zip(found.half_widths, parameters, strict=True)
    ]
    worst = int(np.argmax(widths))
    return worst if not widths[worst] <= 1.0 else None


def _reason(parameters: Sequence[Parameter], found: Fitted, place: int) -> str:
    """Return the reason why the data do not determine a quantity."""
    parameter = parameters[place]
    if np.abs(found.slope[:, place]).max() < UNSEEN:
        return "no figure of the benchmarks depends on it"
    others = [other for other in range(len(parameters)) if other != place]
    like = likest(found.slope, place, others)
    if like is not None and like[1] >= ALIKE:
        return f"the figures depend on it in the same way as on {parameters[like[0]].name}"
    width = float(found.half_widths[place])
    if parameter.is_share:
        wide = f"{100 * math.expm1(width):.0f} %" if width < 3 else "more than twenty times"
    else:
        wide = f"{width * parameter.unit:.2g} s"
    return f"only within {wide}: add runs at other loads and lengths"


def _widths(found: Fitted, left_open: Sequence[tuple[Floats, float]]) -> Floats:
    """Return half the interval widths, with the uncertainty of quantities that keep defaults."""
    squares = found.half_widths**2
    for column, likely in left_open:
        squares = squares + (Z95 * likely * found.moved_by(column)) ** 2
    widths: Floats = np.sqrt(squares)
    return widths


def _undecided(
    parameter: Parameter, starts: Mapping[str, float], reasons: Mapping[str, str]
) -> Estimate:
    name, start = parameter.name, starts[parameter.name]
    return Estimate(name, parameter.what, start, start, None, None, reasons[name])


def _estimates(
    parameters: Sequence[Parameter], found: Fitted, widths: Floats, starts: Mapping[str, float]
) -> dict[str, Estimate]:
    rows = zip(parameters, found.x.tolist(), widths.tolist(), strict=True)
    return {k.name: _estimate(k, x, width, starts[k.name]) for k, x, width in rows}


def _estimate(parameter: Parameter, x: float, width: float, start: float) -> Estimate:
    if parameter.is_share:
        low, value, high = (start * math.exp(x + sign * width) for sign in (-1, 0, 1))
    else:
        low, value, high = (max(x + sign * width, 0.0) * parameter.unit for sign in (-1, 0, 1))
    return Estimate(parameter.name, parameter.what, start, value, low, high)


def _errors(
    simulator: Simulator, runs: Sequence[Measured], values: Mapping[str, float]
) -> list[Error]:
    """Return the errors of each run, with the defaults and with the fit."""
    if not runs:
        return []
    targets = targets_of(runs)
    before = targets.errors(simulator.figures(runs, {}))
    after = targets.errors(simulator.figures(runs, values))
    errors = [Error(one.name, {}, {}) for one in runs]
    for (place, _), kind, old, new in zip(
        targets.places, targets.kinds, before, after, strict=True
    ):
        errors[place].before[kind] = 100 * math.expm1(float(old))
        errors[place].after[kind] = 100 * math.expm1(float(new))
    return errors


def mean_error(errors: Sequence[Error], *, after: bool) -> float | None:
    """Return the mean of absolute errors, percent; None without errors."""
    found = [abs(v) for e in errors for v in (e.after if after else e.before).values()]
    return float(np.mean(found)) if found else None
