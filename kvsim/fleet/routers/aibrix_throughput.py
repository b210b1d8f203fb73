"""AIBrix's throughput routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Interval  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.routing import TokenRates
from kvsim.rules.routing.by_load import choose_aibrix_throughput

if TYPE_CHECKING:
    from kvsim.records.memory import Memory


@ROUTERS.register("aibrix-throughput")
class AibrixThroughput(RuleRouter):
    """AIBrix's throughput: the smallest ``2 * prompt rate + generation rate``.

    Rates are tokens per second between the last two scrapes that this router has read. Ties are
    broken at random. The replica that has computed the fewest tokens gets the next request, even if
    it has many in flight.

    Source: pkg/plugins/gateway/algorithms of vllm-project/aibrix at e3e10f9e. AIBrix reads two
    gauges that vLLM V0 averaged over 5 s; here the rates come from the counters of vLLM V1.

    Parameters
    ----------
    scrape_interval : seconds between two scrapes
    """

    takes_changes = True
    rule = staticmethod(choose_aibrix_throughput)

    def __init__(self, *, scrape_interval: Interval = 5.0) -> None:
        self.scrape_interval = scrape_interval

    def make_state(self, memory: Memory) -> TokenRates:
        state, number = memory.one(TokenRates), self.facts.num_replicas
        state.as_of = memory.list_of([self.facts.start_time] * number)
        state.prompt_tokens, state.generation_tokens = memory.ints(number), memory.ints(number)
        state.rates = memory.floats(number)
        return state

    def on_leave(self, replica: int) -> None:
        state = self.state
        state.as_of[replica], state.rates[replica] = self.facts.start_time, 0.0
        state.prompt_tokens[replica] = state.generation_tokens[replica] = 0
