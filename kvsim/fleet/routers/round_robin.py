"""Round-robin routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("round-robin")
class RoundRobin(Router):
    """Choose the replicas in turn."""

    takes_changes = True

    def __init__(self) -> None:
        self._next = 0

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        del request
        choice = self._next % len(replicas)
        self._next = (choice + 1) % len(replicas)
        return choice
