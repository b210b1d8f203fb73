"""Who waits, and who is turned away, before any replica is chosen."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when one is made
    Count,
    Limit,
    Seconds,
)
from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fleet.view import Scraped

#: How requests of one priority take turns: one per tenant, or in the order of their coming.
Fairness = Literal["round-robin", "global"]


class FlowControl(ABC):
    """Holds requests back while the fleet is saturated.

    Attributes
    ----------
    interval : seconds between two readings of the replicas' metrics
    fairness : among requests of one priority
    most_waiting : requests that wait at once; more are turned away
    """

    interval: float = 0.05
    fairness: Fairness = "round-robin"
    most_waiting: float = math.inf

    @abstractmethod
    def saturation(self, replicas: Sequence[Scraped]) -> float:
        """Return how full the fleet is; requests go on while it is below 1."""

    def shedding(self, priority: int, saturation: float) -> float:
        """Return the probability that a request is turned away when it comes."""
        del priority, saturation
        return 0.0


#: Factories take keyword parameters only.
FLOW_CONTROLS: Registry[FlowControl] = Registry(
    "flow control", None, FlowControl, "kvsim.flow_controls"
)


def make_flow_control(text: str) -> FlowControl:
    """Make ``NAME[+KEY=VALUE]...``.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    return FLOW_CONTROLS.create(name, **params)


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
        interval: Seconds = 0.05,
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
