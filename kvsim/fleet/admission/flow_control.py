"""Who waits, and who is turned away, before any replica is chosen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal, NamedTuple

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when one is made
    Count,
    Interval,
    Limit,
)
from kvsim.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.routing.view import Scraped


class Waiting(NamedTuple):
    """A request that is about to wait.

    Attributes
    ----------
    time : now, seconds
    num_uncached_tokens : of its prompt, what no replica is known to hold
    """

    time: float
    num_uncached_tokens: int


#: How requests of one priority take turns: one per tenant, or in the order of their coming.
Fairness = Literal["round-robin", "global"]


class FlowControl(ABC):
    """Holds requests back while the fleet is saturated.

    Attributes
    ----------
    interval : seconds between two readings of the replicas' metrics
    fairness : among requests of one priority
    most_waiting : requests that wait at once; more are turned away
    watches_prefills : it reads what the routers have sent and what has no first token yet
    """

    interval: float = 0.05
    fairness: Fairness = "round-robin"
    most_waiting: float = math.inf
    watches_prefills: bool = False

    @abstractmethod
    def saturation(self, replicas: Sequence[Scraped]) -> float:
        """Return how full the fleet is; requests go on while it is below 1."""

    def prefill_saturation(self, num_tokens: Sequence[int], max_num_batched_tokens: int) -> float:
        """Return how full the fleet is by the prompts that it computes; 0 unless watched.

        Parameters
        ----------
        num_tokens : of each replica, tokens of prompts without a first token, less what their
            routers took for cached
        max_num_batched_tokens : of a step of theirs
        """
        del num_tokens, max_num_batched_tokens
        return 0.0

    def rank(self, request: Waiting) -> float:
        """Return the place of a request in its line: the lowest first, of equals who came first."""
        del request
        return 0.0

    def shedding(self, priority: int, saturation: float) -> float:
        """Return the probability that a request is turned away when it comes."""
        del priority, saturation
        return 0.0


#: Factories take keyword parameters only.
FLOW_CONTROLS: Registry[FlowControl] = Registry(
    "flow control", None, FlowControl, "kvsim.flow_controls"
)


@FLOW_CONTROLS.register("llm-d")
class UtilisationBands(FlowControl):
    """Bands by priority, strictly, while the replicas' queues or KV caches are full.

    Saturation is the mean over replicas of ``max(waiting / queue, kv_usage / kv)``, and 1 while
    none is ready. Priorities are vLLM's: lower first. With ``sheds`` a request whose priority is
    above 0 (llm-d's "sheddable", a priority below 0 there) is turned away with probability
    ``min(300 * saturation^5, 1)``.

    Source: llm-d-inference-scheduler at 520af478, its flow control and probabilistic admission.

    Parameters
    ----------
    queue : waiting requests of a replica that is full
    kv : share of the KV blocks in use of a replica that is full
    interval : seconds between two readings of the metrics
    fairness : round-robin (tenants take turns) or global (who came first)
    most_waiting : requests that wait at once; more are turned away
    sheds : turn requests away that can be spared
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

    def saturation(self, replicas: Sequence[Scraped]) -> float:  # noqa: D102
        if not replicas:
            return 1.0  # nobody could take it
        full = [max(one.num_waiting / self._queue, one.kv_usage / self._kv) for one in replicas]
        return sum(full) / len(full)

    def shedding(self, priority: int, saturation: float) -> float:  # noqa: D102
        if not self._sheds or priority <= 0:
            return 0.0
        return min(300.0 * saturation**5, 1.0)


@FLOW_CONTROLS.register("dynamo")
class PrefillQueue(FlowControl):
    """Dynamo's router queue: requests wait while every worker computes more prompts than enough.

    That is, while the prompt tokens in flight, cached ones left out, are above ``threshold`` steps
    of ``max_num_batched_tokens`` at every worker, by the router's own prediction. Who waits goes on
    in the order of coming, the last first (``lcfs``), or the shortest first (``wspt``, by the
    tokens of its prompt that no worker is known to hold when it comes), which lowers the mean time
    to the first token.

    Source: lib/kv-router of ai-dynamo/dynamo at 0243c51. There a queue is looked at whenever a
    first token comes or a request ends, here every ``interval``; and priorities are bands here, as
    before every router, where Dynamo's move a request forward by seconds.

    Parameters
    ----------
    threshold : steps
    order : of those who wait
    interval : seconds between two looks
    most_waiting : requests that wait at once; more are turned away
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

    def saturation(self, replicas: Sequence[Scraped]) -> float:  # noqa: D102
        return 0.0 if replicas else 1.0  # nobody could take it

    def prefill_saturation(  # noqa: D102
        self, num_tokens: Sequence[int], max_num_batched_tokens: int
    ) -> float:
        most = self._threshold * max_num_batched_tokens
        return 1.0 if min(num_tokens, default=0) > most else 0.0

    def rank(self, request: Waiting) -> float:  # noqa: D102
        if self._order == "lcfs":
            return -request.time
        return float(request.num_uncached_tokens) if self._order == "wspt" else 0.0
