"""AIBrix's throughput routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Interval  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.choice import uniform_argmin
from kvsim.fleet.routing.router import ROUTERS, Router
from kvsim.fleet.routing.view import Scraped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("aibrix-throughput")
class AibrixThroughput(Router):
    """AIBrix's throughput: the smallest ``2 * prompt rate + generation rate``.

    Rates are tokens per second between the last two scrapes that a request used. Ties are broken at
    random. The replica that has done least gets most requests, even if many are in flight.

    Source: pkg/plugins/gateway/algorithms of vllm-project/aibrix at e3e10f9e. It reads two gauges
    that vLLM averaged over 5 s; vLLM V1 has counters instead, which give the rates here.

    Parameters
    ----------
    scrape_interval : seconds between two scrapes
    """

    takes_changes = True

    def __init__(self, *, scrape_interval: Interval = 5.0) -> None:
        self.scrape_interval = scrape_interval

    def start(self, facts: Facts) -> None:  # noqa: D102
        super().start(facts)
        self._last: dict[int, Scraped] = {}
        self._scores: dict[int, float] = {}

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:  # noqa: D102
        del request
        scores = [self._score(one.index, one.scraped) for one in replicas]
        return uniform_argmin(scores, self.facts.rng)

    def _score(self, index: int, now: Scraped) -> float:
        """Return the weighted rate of a replica."""
        before = self._last.get(index, Scraped(self.facts.start_time))
        seconds = now.as_of - before.as_of
        if seconds > 0:
            prompts = now.prompt_tokens - before.prompt_tokens
            outputs = now.generation_tokens - before.generation_tokens
            self._scores[index] = (2 * prompts + outputs) / seconds
            self._last[index] = now
        return self._scores.get(index, 0.0)

    def on_leave(self, replica: int) -> None:  # noqa: D102
        self._last.pop(replica, None)
        self._scores.pop(replica, None)
