"""Metrics of a run as attributes, in seconds; the summary has them under vLLM's names."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Latency:
    """Statistics of a latency, in seconds; NaN if no request has one."""

    mean: float
    median: float
    p90: float
    p99: float


@dataclass(frozen=True)
class TokenLatency(Latency):
    """Statistics of the gaps between tokens, in seconds: also the 99.9th percentile and maximum."""

    p999: float
    max: float


@dataclass(frozen=True)
class RunMetrics:
    """Metrics of a run: times in seconds, rates per second; NaN if undefined.

    Attributes
    ----------
    ttft : time to first token, queueing included (s)
    tpot : time per output token after the first, per request (s)
    itl : gaps between two tokens (s)
    e2el : arrival to last token (s)
    duration : first arrival to last event (s)
    completed, num_rejected, num_preemptions : counts
    request_throughput : completed requests per second
    output_throughput, total_token_throughput : tokens per second
    mean_running, mean_waiting : numbers of requests, averaged over time
    prefix_cache_hit_rate : share of the prompt tokens found in the cache
    mean_kv_usage, peak_kv_usage : share of the KV blocks in use
    """

    ttft: Latency
    tpot: Latency
    itl: TokenLatency
    e2el: Latency
    duration: float
    completed: int
    num_rejected: int
    num_preemptions: int
    request_throughput: float
    output_throughput: float
    total_token_throughput: float
    mean_running: float
    mean_waiting: float
    prefix_cache_hit_rate: float
    mean_kv_usage: float
    peak_kv_usage: float


def metrics_of(summary: Mapping[str, Any]) -> RunMetrics:
    """Return the metrics of a summary, which has milliseconds."""
    cache = summary["kv_cache"]
    kinds = ("mean", "median", "p90", "p99")

    def latency(name: str) -> Latency:
        return Latency(*_seconds(summary, name, kinds))

    names = [one.name for one in fields(RunMetrics) if one.name in summary]
    plain: dict[str, Any] = {name: _number(summary[name]) for name in names}
    return RunMetrics(
        ttft=latency("ttft"),
        tpot=latency("tpot"),
        itl=TokenLatency(*_seconds(summary, "itl", (*kinds, "p999", "max"))),
        e2el=latency("e2el"),
        **plain,
        mean_kv_usage=_number(cache["mean_usage"]),
        peak_kv_usage=_number(cache["peak_usage"]),
    )


def _seconds(summary: Mapping[str, Any], name: str, kinds: tuple[str, ...]) -> list[float]:
    return [_number(summary.get(f"{kind}_{name}_ms")) / 1000 for kind in kinds]


def _number(value: float | None) -> float:
    return math.nan if value is None else value
