"""Dynamo's planner, load mode with latency targets."""

from __future__ import annotations

from kvsim.fleet.autoscalers.dynamo_throughput import replicas_for
from kvsim.fleet.parameters import Delay, Limit, Share  # noqa: TC001 - read when one is made
from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Load, PoolLoad
from kvsim.fleet.scaling.forecast import Forecast, Predictor


@AUTOSCALERS.register("dynamo-sla")
class LatencyPlanner(Autoscaler):
    """Add a replica if all may miss a target; remove one if the others would meet all targets.

    A prompt's estimated TTFT is the prefill time of the queue before it plus its own prefill time,
    at the rate of full steps. A replica is removed only if the others could take its load: their
    ITL must stay below ``headroom`` times its target, their queueing time below ``headroom`` times
    (TTFT target - own prefill time), and the KV must fit. Nothing changes while a replica is
    starting. With ``throughput_interval``, ``dynamo-throughput`` sets a minimum, evaluated at that
    interval.

    Source: components/src/dynamo/planner/core/load_scaling.py at 0c6da1e, target ``sla``.

    Parameters
    ----------
    ttft, itl : targets, seconds
    headroom : share of a target that may be used with one replica fewer
    throughput_interval : seconds between evaluations of ``dynamo-throughput``; 0 for never
    predictor : predictor of the next throughput interval: constant or kalman
    """

    interval = 5.0

    def __init__(
        self,
        *,
        ttft: Limit = 1.5,
        itl: Limit = 0.05,
        headroom: Share = 0.8,
        throughput_interval: Delay = 0.0,
        predictor: Predictor = "constant",
    ) -> None:
        self._ttft, self._itl, self._headroom = ttft, itl, headroom
        self._every, self._asked, self._floor = throughput_interval, 0.0, 0
        self._forecast = Forecast(predictor)

    def desired(self, pool: PoolLoad) -> int:
        if self._every and pool.now >= self._asked + self._every:
            self._asked = pool.now
            needed = replicas_for(pool, self._every, self._itl, self._forecast)
            self._floor = needed or self._floor
        return max(self._by_load(pool), self._floor)

    def _by_load(self, pool: PoolLoad) -> int:
        number = pool.num_replicas
        if pool.num_starting:
            return number
        if pool.num_unplaced or all(self._misses(pool, one) for one in pool.ready):
            return number + 1
        if number < 2:
            return number
        more = number / (number - 1)
        return number - all(self._would_keep(pool, one, more) for one in pool.ready)

    def _misses(self, pool: PoolLoad, one: Load) -> bool:
        own = one.mean_prompt_tokens / pool.prefill_rate
        ttft = one.queued_tokens / pool.prefill_rate + own
        return ttft > self._ttft or self._gap(pool, one, 1.0) > self._itl

    def _would_keep(self, pool: PoolLoad, one: Load, more: float) -> bool:
        own = one.mean_prompt_tokens / pool.prefill_rate
        queue = more * one.queued_tokens / pool.prefill_rate
        return (
            queue < (self._ttft - own) * self._headroom
            and self._gap(pool, one, more) < self._itl * self._headroom
            and more * one.kv_usage < 1
        )

    def _gap(self, pool: PoolLoad, one: Load, more: float) -> float:
        """Return the seconds of a decode step with ``more`` times the running requests."""
        if not one.num_running:
            return 0.0
        tokens = one.kv_usage * pool.num_kv_tokens / one.num_running
        return pool.step_time(round(one.num_running * more), round(tokens) or 1)
