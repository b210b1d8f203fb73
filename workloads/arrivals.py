"""Arrival processes of requests or sessions.

A process draws gaps; the first arrival is one gap after time 0. Processes with equal mean rates
differ in their burstiness. A text such as ``poisson`` or ``gamma+cv=3`` selects one. As in ``vllm
bench serve``, the gaps are scaled so that the last of n requests arrives at n / rate: the trace has
exactly this rate. ``poisson+raw=true`` does not scale them; the rate is then off by a few percent.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kvsim.registry import Registry, parse_spec
from kvsim.trace import check_rate

Floats = NDArray[np.float64]

ARRIVALS: Registry[Floats] = Registry("arrival process", kind=np.ndarray)


def draw_arrivals(
    process: str, num_requests: int, request_rate: float, rng: np.random.Generator
) -> Floats:
    """Draw ascending arrival times.

    Parameters
    ----------
    process : name of the process with its parameters, ``NAME[+KEY=VALUE]...``
    num_requests : number of arrivals
    request_rate : mean arrivals per second; with ``inf`` all arrive at time 0
    rng : source of randomness

    Returns
    -------
    float64 of shape (num_requests,), seconds

    Raises
    ------
    ValueError
        For an unknown process or parameter, or a value out of range.
    """
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    check_rate(request_rate)
    name, params = parse_spec(process)
    finite_rate = request_rate if math.isfinite(request_rate) else 1.0
    times = ARRIVALS.create(name, num_requests, finite_rate, rng, **params)
    return times if math.isfinite(request_rate) else np.zeros(num_requests)


def _arrive(gaps: Floats, request_rate: float, raw: bool) -> Floats:
    """Return the sums of gaps, scaled to the requested mean rate unless kept as drawn."""
    times = np.cumsum(gaps)
    return times if raw else times * (len(gaps) / request_rate / times[-1])


@ARRIVALS.register("poisson")
def poisson(
    num_requests: int, request_rate: float, rng: np.random.Generator, *, raw: bool = False
) -> Floats:
    """Exponential gaps, CV 1: independent users, the default of ``vllm bench serve``."""
    return _arrive(rng.exponential(1 / request_rate, num_requests), request_rate, raw)


@ARRIVALS.register("gamma")
def gamma(
    num_requests: int,
    request_rate: float,
    rng: np.random.Generator,
    *,
    cv: float = 2.0,
    raw: bool = False,
) -> Floats:
    """Gamma gaps with a coefficient of variation ``cv``: 1 is Poisson, above 1 is bursty."""
    if not 0 < cv < math.inf:
        raise ValueError(f"cv must be finite and above 0, got {cv}")
    return _arrive(rng.gamma(cv**-2, cv**2 / request_rate, num_requests), request_rate, raw)


@ARRIVALS.register("constant")
def constant(num_requests: int, request_rate: float, rng: np.random.Generator) -> Floats:
    """Equal gaps."""
    return np.arange(1, num_requests + 1) / request_rate


@ARRIVALS.register("onoff")
def onoff(
    num_requests: int,
    request_rate: float,
    rng: np.random.Generator,
    *,
    on_duration: float = 10.0,
    off_duration: float = 10.0,
    raw: bool = False,
) -> Floats:
    """Poisson bursts of ``on_duration`` seconds, separated by ``off_duration`` seconds of silence.

    Within a burst the rate is ``(on + off) / on`` times the mean rate.
    """
    for name, value in (("on_duration", on_duration), ("off_duration", off_duration)):
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be finite and above 0, got {value}")
    period = on_duration + off_duration
    busy = poisson(num_requests, request_rate * period / on_duration, rng, raw=raw)
    return busy + np.floor(busy / on_duration) * off_duration


#: Number of intervals of a period at which its cumulative arrivals are tabulated.
POINTS = 1440


@ARRIVALS.register("diurnal")
def diurnal(
    num_requests: int,
    request_rate: float,
    rng: np.random.Generator,
    *,
    period: float = 86_400.0,
    trough: float = 0.2,
    raw: bool = False,
) -> Floats:
    """Poisson with a rate that follows a cosine over each ``period`` seconds, lowest at its ends.

    The lowest rate is ``trough`` times the peak in the middle. The mean over whole periods is the
    request rate.
    """
    if not 0 < period < math.inf:
        raise ValueError(f"period must be finite and above 0, got {period}")
    if not 0 <= trough <= 1:
        raise ValueError(f"trough must be from 0 to 1, got {trough}")
    even = poisson(num_requests, request_rate, rng, raw=raw)
    swing = (1 - trough) / (1 + trough)
    phase = np.linspace(0.0, 1.0, POINTS + 1)
    passed = phase - swing * np.sin(2 * np.pi * phase) / (2 * np.pi)  # share of a period's arrivals
    whole = np.floor(even / period)
    return (whole + np.interp(even / period - whole, passed, phase)) * period
