"""Routing to the replica with the emptiest KV cache."""

from __future__ import annotations

from kvsim.fleet.parameters import Interval  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.rules.routing.by_load import choose_least_kv


@ROUTERS.register("least-kv")
class LeastKV(RuleRouter):
    """The replica with the smallest share of KV-cache blocks in use, as last scraped.

    Ties are broken at random. Between two scrapes the numbers do not change.

    Source: AIBrix's least-kv-cache, pkg/plugins/gateway/algorithms at e3e10f9e.

    Parameters
    ----------
    scrape_interval : seconds between two scrapes
    """

    takes_changes = True
    rule = staticmethod(choose_least_kv)

    def __init__(self, *, scrape_interval: Interval = 1.0) -> None:
        self.scrape_interval = scrape_interval
