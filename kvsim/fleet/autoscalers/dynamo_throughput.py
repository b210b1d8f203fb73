"""Dynamo's planner, throughput mode."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Limit  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, PoolLoad
from kvsim.fleet.scaling.forecast import Forecast, Predictor

if TYPE_CHECKING:
    from kvsim.fleet.scaling.traffic import Traffic


@AUTOSCALERS.register("dynamo-throughput")
class ThroughputPlanner(Autoscaler):
    """Divide the expected requests per second by the sustained rate of one replica.

    A replica spends on each request the time of its uncached prompt tokens at the rate of full
    steps, plus its share of decode steps. The decode batch is the largest that meets ``itl`` and
    fits in KV memory, with all requests halfway through their outputs. The next interval is
    predicted to equal the last one, or by a Kalman filter over all earlier ones. An interval
    without arrivals or answers changes nothing.

    Source: components/src/dynamo/planner/core/throughput_scaling.py at 0c9050c9, aggregated
    replicas; a replica's rate follows from the run's step times.

    Parameters
    ----------
    itl : target, seconds
    predictor : predictor of the next interval: constant or kalman (Dynamo also has arima, prophet)
    """

    interval = 180.0

    def __init__(self, *, itl: Limit = 0.05, predictor: Predictor = "constant") -> None:
        self._itl = itl
        self._forecast = Forecast(predictor)

    def desired(self, pool: PoolLoad) -> int:
        return replicas_for(pool, self.interval, self._itl, self._forecast) or pool.num_replicas


def replicas_for(pool: PoolLoad, interval: float, itl: float, forecast: Forecast) -> int:
    """Return the number of replicas for the requests expected in ``interval`` seconds.

    0 (no estimate) if the last interval had no arrivals or no answers.
    """
    traffic = pool.traffic(interval)
    if not traffic.num_requests or not traffic.output_tokens:
        return 0
    traffic = forecast.next(traffic)
    needed = traffic.num_requests / interval / sustained_rate(pool, traffic, itl)
    return max(math.ceil(needed), 1)


def sustained_rate(pool: PoolLoad, traffic: Traffic, itl: float) -> float:
    """Return the requests/s that one replica sustains with decode steps of at most ``itl`` s."""
    context = max(1, round(traffic.prompt_tokens + traffic.output_tokens / 2))
    low, high = 1, max(1, min(pool.max_num_seqs, pool.num_kv_tokens // context))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pool.step_time(middle, context) <= itl else (low, middle - 1)
    prompt = traffic.prompt_tokens * (1 - traffic.hit_rate) / pool.prefill_rate
    outputs = traffic.output_tokens * pool.step_time(low, context) / low
    return 1 / (prompt + outputs)
