"""Routing to the better of two replicas drawn at random."""

from __future__ import annotations

from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.rules.routing.pick import least_of_two


@ROUTERS.register("power-of-two")
class PowerOfTwo(RuleRouter):
    """Draw two different replicas at random; the one with fewer unfinished requests wins.

    Source: Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
    """

    takes_changes = True
    looks_at_replicas = True

    rule = staticmethod(least_of_two)
