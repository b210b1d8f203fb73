"""Benchmark files: the requests sent to a server, and the latencies at the client."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Number of random draws of arrivals that a file does not record; results are averaged over them.
DRAWS = 3


class Measured(NamedTuple):
    """A run of a benchmark.

    Attributes
    ----------
    name : name of the file, with the run's index if the file has several
    traces : the requests; several traces with drawn arrivals if only the arrival rate is known
    max_concurrency : largest number of requests that the client has in flight; None for no limit
    ttft, tpot : mean seconds to the first token, and per later output token; None if not recorded
    notes : facts that the file lacks, and the assumptions
    """

    name: str
    traces: tuple[Trace, ...]
    max_concurrency: int | None
    ttft: float | None
    tpot: float | None
    notes: tuple[str, ...] = ()


class Requests(NamedTuple):
    """Columns of individual requests, in tokens and seconds; ``sent`` is None if not recorded."""

    prompts: Sequence[int]
    outputs: Sequence[int]
    sent: Sequence[float] | None
    ttft: Sequence[float]
    tpot: Sequence[float]


def measured(
    name: str,
    found: Requests,
    *,
    request_rate: float = math.inf,
    max_concurrency: int | None = None,
    burstiness: float = 1.0,
) -> Measured:
    """Return a run with individually known requests.

    Raises
    ------
    ValueError
        If there are no requests, or tokens or times are invalid.
    """
    if not len(found.prompts):
        raise ValueError(f"{name}: has no successful request")
    notes: tuple[str, ...] = ()
    if found.sent is not None and max_concurrency is None:
        arrivals = [np.asarray(found.sent, dtype=np.float64) - min(found.sent)]
    else:
        arrivals = arrivals_at(request_rate, burstiness, len(found.prompts))
        notes = drawn_note(name, arrivals)
    traces = tuple(trace_of(times, found.prompts, found.outputs) for times in arrivals)
    tpot = np.asarray(found.tpot, dtype=np.float64)
    tpot = tpot[np.isfinite(tpot)]
    return Measured(
        name,
        traces,
        max_concurrency,
        float(np.mean(found.ttft)),
        float(tpot.mean()) if len(tpot) else None,
        notes,
    )


def per_token(seconds: Iterable[float], outputs: Iterable[int]) -> list[float]:
    """Return seconds per token after the first; NaN for a single token."""
    return [
        time / (output - 1) if output > 1 else math.nan
        for time, output in zip(seconds, outputs, strict=True)
    ]


def trace_of(times: Any, prompts: Sequence[int], outputs: Sequence[int]) -> Trace:
    """Return requests in the order of their arrival."""
    order = np.argsort(times, kind="stable")
    return Trace.from_arrays(
        np.asarray(times)[order], np.asarray(prompts)[order], np.asarray(outputs)[order]
    )


def arrivals_at(rate: float, burstiness: float, number: int) -> list[Any]:
    """Return draws of arrival times as in ``vllm bench serve``: gamma gaps, scaled to the rate."""
    if math.isinf(rate):
        return [np.zeros(number)]
    drawn = []
    for seed in range(DRAWS):
        gaps = np.random.default_rng(seed).gamma(burstiness, 1 / burstiness, number)
        times = np.cumsum(gaps)
        drawn.append(times * (number / rate / times[-1]))
    return drawn


def lengths_around(mean: float, range_ratio: float, number: int) -> list[int]:
    """Return lengths drawn uniformly within ``mean * (1 +- range_ratio)``, with a fixed seed."""
    low, high = mean * (1 - range_ratio), mean * (1 + range_ratio)
    drawn = np.random.default_rng([number, round(mean)]).uniform(low, high, number)
    return [max(round(length), 1) for length in drawn.tolist()]


def drawn_note(name: str, arrivals: Sequence[Any]) -> tuple[str, ...]:
    if len(arrivals) == 1:
        return ()
    return (f"{name}: has no send times; the means are over {DRAWS} random draws at its rate",)


def number(given: Mapping[str, Any], *names: str) -> float | None:
    """Return the first of the named entries that is a number or the text ``inf``; else None."""
    for name in names:
        value = given.get(name)
        if value is not None and not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError):
                continue
    return None
