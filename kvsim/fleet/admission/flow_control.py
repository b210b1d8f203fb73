"""Flow control: requests wait or are rejected before a replica is chosen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when one is made
    Count,
    Interval,
    Limit,
)
from kvsim.parametric import Parametric
from kvsim.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.routing.view import Scraped


class Waiting(NamedTuple):
    """A request that is about to be queued.

    Attributes
    ----------
    time : now, seconds
    num_uncached_tokens : prompt tokens that no replica is known to hold
    """

    time: float
    num_uncached_tokens: int


#: Order among requests of one priority: tenants take turns, or one order for all tenants.
Fairness = Literal["round-robin", "global"]


class FlowControl(Parametric, ABC):
    """Holds requests back while the fleet is saturated.

    Attributes
    ----------
    interval : seconds between two readings of the replicas' metrics
    fairness : order among requests of one priority
    most_waiting : largest number of waiting requests; further ones are rejected
    watches_prefills : saturation also depends on ``prefill_saturation``
    """

    interval: float = 0.05
    fairness: Fairness = "round-robin"
    most_waiting: float = math.inf
    watches_prefills: bool = False

    @abstractmethod
    def saturation(self, replicas: Sequence[Scraped]) -> float:
        """Return the saturation of the fleet; queued requests are released while it is below 1."""

    def prefill_saturation(self, num_tokens: Sequence[int], max_num_batched_tokens: int) -> float:
        """Return the saturation by prompts in flight, like :meth:`saturation`; by default 0.

        Parameters
        ----------
        num_tokens : per replica, tokens of prompts without a first token, less those that the
            routers predicted to be cached
        max_num_batched_tokens : largest number of tokens in a replica's step
        """
        del num_tokens, max_num_batched_tokens
        return 0.0

    def rank(self, request: Waiting) -> float:
        """Return the sort key of a request in its queue: lowest first, ties in order of arrival."""
        del request
        return 0.0

    def shedding(self, priority: int, saturation: float) -> float:
        """Return the probability that an arriving request is rejected."""
        del priority, saturation
        return 0.0


#: Factories take keyword parameters only.
FLOW_CONTROLS: Registry[FlowControl] = Registry(
    "flow control", None, FlowControl, "kvsim.flow_controls"
)


@FLOW_CONTROLS.register("llm-d")
class UtilisationBands(FlowControl):
    """Strict priority bands while the replicas' queues or KV caches are full.

    Saturation is the mean over replicas of ``max(waiting / queue, kv_usage / kv)``, and 1 while
    no replica is ready. Priorities are vLLM's: lower first. With ``sheds`` a request with a
    priority above 0 (llm-d's "sheddable", a priority below 0 there) is rejected with probability
    ``min(300 * saturation^5, 1)``.

    Source: llm-d-inference-scheduler at 520af478, its flow control and probabilistic admission.

    Parameters
    ----------
    queue : number of waiting requests at which a replica is full
    kv : share of the KV blocks in use at which a replica is full
    interval : seconds between two readings of the metrics
    fairness : round-robin (tenants take turns) or global (first come, first served)
    most_waiting : largest number of waiting requests; further ones are rejected
    sheds : reject sheddable requests
    """

    def __init__(
        self,
        *,
        queue: Limit = 5.0,
        kv: Limit = 0.8,
        interval: Interval = 0.05,
        fairness: Fairness = "round-robin",
        most_waiting: Count | None = None,
        sheds: bool = False,
    ) -> None:
        self._queue, self._kv = queue, kv
        self.interval = interval
        self.fairness = fairness
        self.most_waiting = math.inf if most_waiting is None else most_waiting
        self._sheds = sheds

    def saturation(self, replicas: Sequence[Scraped]) -> float:
        if not replicas:
            return 1.0  # no replica could take a request
        full = [max(one.num_waiting / self._queue, one.kv_usage / self._kv) for one in replicas]
        return sum(full) / len(full)

    def shedding(self, priority: int, saturation: float) -> float:
        if not self._sheds or priority <= 0:
            return 0.0
        return min(300.0 * saturation**5, 1.0)


@FLOW_CONTROLS.register("dynamo")
class PrefillQueue(FlowControl):
    """Dynamo's router queue: requests wait while every worker has too many prompt tokens in flight.

    Requests wait while, as the router predicts, every worker has more than
    ``threshold * max_num_batched_tokens`` uncached prompt tokens in flight. They are released in
    order of arrival (``fcfs``), last first (``lcfs``), or shortest first (``wspt``), which lowers
    the mean TTFT; the length counts the prompt tokens that no worker is known to hold on arrival.

    Source: lib/kv-router of ai-dynamo/dynamo at 0243c51. Dynamo checks its queue at every first
    token and every end of a request, kvsim every ``interval``. Priorities are bands here, as in
    every flow control of kvsim; in Dynamo they move a request forward by seconds.

    Parameters
    ----------
    threshold : limit on prompt tokens in flight, in units of ``max_num_batched_tokens``
    order : order of waiting requests
    interval : seconds between two checks
    most_waiting : largest number of waiting requests; further ones are rejected
    """

    fairness = "global"
    watches_prefills = True

    def __init__(
        self,
        *,
        threshold: Limit = 16.0,
        order: Literal["fcfs", "lcfs", "wspt"] = "fcfs",
        interval: Interval = 0.01,
        most_waiting: Count | None = None,
    ) -> None:
        self._threshold, self._order = threshold, order
        self.interval = interval
        self.most_waiting = math.inf if most_waiting is None else most_waiting

    def saturation(self, replicas: Sequence[Scraped]) -> float:
        return 0.0 if replicas else 1.0  # no replica could take a request

    def prefill_saturation(self, num_tokens: Sequence[int], max_num_batched_tokens: int) -> float:
        most = self._threshold * max_num_batched_tokens
        return 1.0 if min(num_tokens, default=0) > most else 0.0

    def rank(self, request: Waiting) -> float:
        if self._order == "lcfs":
            return -request.time
        return float(request.num_uncached_tokens) if self._order == "wspt" else 0.0
