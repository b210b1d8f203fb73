"""Routing to the replica with the fewest unfinished requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("least-outstanding")
class LeastOutstanding(Router):
    """The replica with the fewest unfinished requests, the first of several."""

    takes_changes = True
    looks_at_replicas = True

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:  # noqa: D102
        del request
        loads = [replica.num_outstanding() for replica in replicas]
        return loads.index(min(loads))
