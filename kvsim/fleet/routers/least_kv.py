"""Routing to the replica with the emptiest KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Interval  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.choice import uniform_argmin
from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("least-kv")
class LeastKV(Router):
    """The replica with the smallest share of KV-cache blocks in use, as last scraped.

    Ties are broken at random. All requests between two scrapes see the same numbers.

    Source: AIBrix's least-kv-cache, pkg/plugins/gateway/algorithms at e3e10f9e.

    Parameters
    ----------
    scrape_interval : seconds between two scrapes
    """

    takes_changes = True

    def __init__(self, *, scrape_interval: Interval = 1.0) -> None:
        self.scrape_interval = scrape_interval

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:  # noqa: D102
        del request
        return uniform_argmin([r.scraped.kv_usage for r in replicas], self.facts.rng)
