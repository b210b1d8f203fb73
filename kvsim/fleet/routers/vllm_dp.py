"""vLLM's own balancer of data-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Interval  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.choice import argmin
from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView

#: Number of running requests that one waiting request counts as.
WAITING = 4


@ROUTERS.register("vllm-dp")
class VllmDataParallel(Router):
    """The smallest ``4 * waiting + running``, counted by the coordinator every 100 ms.

    Requests sent since the last count are taken as waiting. Without that (``count-sent=false``),
    all requests of an interval go to one replica. The first of equals wins.

    Source: vLLM's data-parallel deployment guide; weights and interval as in docs/guide/routing.md
    of inference-sim at f90a1e3a.

    Parameters
    ----------
    scrape_interval : seconds between two counts
    count_sent : add the requests sent since the last count
    """

    takes_changes = True

    def __init__(self, *, scrape_interval: Interval = 0.1, count_sent: bool = True) -> None:
        self.scrape_interval = scrape_interval
        self._count_sent = count_sent

    def start(self, facts: Facts) -> None:  # noqa: D102
        super().start(facts)
        self._sent = [0] * facts.num_replicas
        self._as_of = [facts.start_time] * facts.num_replicas

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:  # noqa: D102
        del request
        costs = []
        for replica in replicas:
            counted, index = replica.scraped, replica.index
            if counted.as_of != self._as_of[index]:
                self._as_of[index], self._sent[index] = counted.as_of, 0
            waiting = counted.num_waiting + self._sent[index]
            costs.append(WAITING * waiting + counted.num_running)
        choice = argmin(costs)
        self._sent[replicas[choice].index] += self._count_sent
        return choice
