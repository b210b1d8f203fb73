"""vLLM's own balancer of data-parallel ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Interval  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.routing import CountedSince
from kvsim.rules.routing.by_load import choose_vllm_dp

if TYPE_CHECKING:
    from kvsim.records.memory import Memory


@ROUTERS.register("vllm-dp")
class VllmDataParallel(RuleRouter):
    """The smallest ``4 * waiting + running``, which the coordinator counts every 100 ms.

    Requests sent since the last count are added to the waiting ones. Without this
    (``count-sent=false``), all requests of an interval go to one replica. The first wins on a tie.

    Source: vLLM's data-parallel deployment guide; weights and interval as in docs/guide/routing.md
    of inference-sim at f90a1e3a.

    Parameters
    ----------
    scrape_interval : seconds between two counts
    count_sent : add the requests sent since the last count
    """

    takes_changes = True
    rule = staticmethod(choose_vllm_dp)

    def __init__(self, *, scrape_interval: Interval = 0.1, count_sent: bool = True) -> None:
        self.scrape_interval = scrape_interval
        self._count_sent = count_sent

    def make_state(self, memory: Memory) -> CountedSince:
        state, number = memory.one(CountedSince), self.facts.num_replicas
        state.counts_sent = self._count_sent
        state.sent = memory.ints(number)
        state.as_of = memory.list_of([self.facts.start_time] * number)
        return state
