"""Routing to the replica with the fewest unfinished requests."""

from __future__ import annotations

from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.rules.routing.pick import least_loaded


@ROUTERS.register("least-outstanding")
class LeastOutstanding(RuleRouter):
    """The replica with the fewest unfinished requests, the first on a tie."""

    takes_changes = True
    looks_at_replicas = True

    rule = staticmethod(least_loaded)
