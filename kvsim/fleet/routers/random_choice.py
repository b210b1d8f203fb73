"""Random routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("random")
class Random(Router):
    """Draw a replica uniformly at random."""

    takes_changes = True

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        del request
        return int(self.facts.rng.integers(len(replicas)))
