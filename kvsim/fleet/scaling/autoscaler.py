"""The interface of autoscalers, which set the number of replicas of a pool."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsim.fleet.parameters import number_of_replicas
from kvsim.fleet.scaling.traffic import Traffic
from kvsim.parametric import Parametric
from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.pool_config import Role


#: Metrics that an autoscaler may read, summed over replicas: see :meth:`PoolLoad.total`.
Metric = Literal["waiting", "running", "requests", "kv"]


#: Least seconds between two decisions.
LEAST_INTERVAL = 0.001


def no_time(num_requests: int, num_tokens: int) -> float:
    """Return 0 seconds for any step."""
    del num_requests, num_tokens
    return 0.0


def no_traffic(seconds: float) -> Traffic:
    """Return no requests for any period."""
    del seconds
    return Traffic()


class Load(NamedTuple):
    """A ready replica's metrics at the time of a decision.

    Attributes
    ----------
    num_waiting, num_running : numbers of requests
    kv_usage : share of its blocks in use
    queued_tokens : prompt tokens that are not computed yet
    mean_prompt_tokens : mean prompt length of its unfinished requests
    replica : number of the replica, unique in a run
    """

    num_waiting: int
    num_running: int
    kv_usage: float
    queued_tokens: int
    mean_prompt_tokens: float = 0.0
    replica: int = 0


@dataclass(frozen=True)
class PoolLoad:
    """The load of a pool, for its autoscaler.

    Parameters
    ----------
    now : seconds since the run began
    ready : load of each replica that accepts requests, or has failed without being detected
    num_starting : replicas that are starting
    num_unplaced : requests that wait at the gateway, since no replica is ready
    num_kv_tokens : slots of one replica's KV cache
    block_size : tokens per block
    prefill_rate : prompt tokens per second of a full step
    step_time : function of the number of requests and the context tokens of each; it returns the
        seconds of a decode step
    max_num_seqs : largest number of requests in one replica's step
    traffic : function of a number of seconds; it returns the traffic of that last period
    max_model_len : tokens of the longest request
    role : role of its replicas
    """

    now: float
    ready: Sequence[Load]
    num_starting: int
    num_unplaced: int
    num_kv_tokens: int
    block_size: int
    prefill_rate: float = 0.0
    step_time: Callable[[int, int], float] = no_time
    max_num_seqs: int = 1
    traffic: Callable[[float], Traffic] = no_traffic
    max_model_len: int = 1
    role: Role = "mixed"

    @property
    def num_replicas(self) -> int:
        """Number of replicas that are ready or starting."""
        return len(self.ready) + self.num_starting

    def total(self, metric: str) -> float:
        """Return the sum of a metric over all replicas: waiting, running, requests or kv."""
        waiting = sum(one.num_waiting for one in self.ready) + self.num_unplaced
        running = sum(one.num_running for one in self.ready)
        if metric == "waiting":
            return waiting
        if metric == "running":
            return running
        return waiting + running if metric == "requests" else sum(r.kv_usage for r in self.ready)


class Autoscaler(Parametric, ABC):
    """Sets the number of replicas of a pool, at regular intervals.

    Attributes
    ----------
    interval : seconds between two decisions
    look_interval : seconds between two readings of the metrics, for autoscalers with a history
    least, most : bounds of the number of replicas, at any time
    grace : seconds that a replica has to drain before it is killed
    """

    interval: float = 15.0
    look_interval: float = math.inf
    grace: float = math.inf
    least: int = 1
    most: int = 8

    @abstractmethod
    def desired(self, pool: PoolLoad) -> int:
        """Return the desired number of replicas; kvsim clips it to the bounds. Mutates."""

    def look(self, pool: PoolLoad) -> None:
        """Record a pool's load, at each ``look_interval`` and before each decision. Mutates."""


#: Factories take keyword parameters only.
AUTOSCALERS: Registry[Autoscaler] = Registry(
    "autoscaler", "kvsim.fleet.autoscalers", Autoscaler, "kvsim.autoscalers"
)


def make_autoscaler(text: str) -> Autoscaler:
    """Make ``NAME[+min=N][+max=N][+interval=SECONDS][+grace=SECONDS][+KEY=VALUE]...``.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    least, most = params.pop("min", "1"), params.pop("max", "8")
    interval, grace = params.pop("interval", None), params.pop("grace", None)
    made, label = AUTOSCALERS.create(name, **params), f"autoscaler {name!r}"
    made.least = number_of_replicas(f"{label}: min={least}", least)
    made.most = number_of_replicas(f"{label}: max={most}", most)
    if made.least > made.most:
        raise ValueError(f"{label}: min={least} is more than max={most}")
    if interval is not None:
        made.interval = _seconds(label, "interval", interval, LEAST_INTERVAL, sys.float_info.max)
    if grace is not None:
        made.grace = _seconds(label, "grace", grace, 0)
    return made


def _seconds(label: str, key: str, text: str, least: float, most: float = math.inf) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not least <= seconds <= most:
        raise ValueError(f"{label}: {key}={text}: must be at least {least} seconds")
    return seconds
