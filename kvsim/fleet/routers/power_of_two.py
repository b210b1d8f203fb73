"""Routing to the better of two replicas drawn at random."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.routing.choice import power_of_two, queues
from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("power-of-two")
class PowerOfTwo(Router):
    """The one with fewer unfinished requests of two different replicas drawn at random.

    Source: Mitzenmacher, "The power of two choices in randomized load balancing", 2001.
    """

    takes_changes = True
    looks_at_replicas = True

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:  # noqa: D102
        del request
        return power_of_two(queues(replicas), self.facts.rng)
