"""Routing by session: a conversation stays at its replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Points, Seconds  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.hash_ring import HashRing
from kvsim.fleet.routing.request_rate import RequestRate
from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("session")
class Session(Router):
    """Consistent hashing of the session; without one, the replica with the fewest requests.

    The hash ring has ``points`` points per replica. A request without a session goes to the replica
    that received the fewest requests from this gateway in the last ``window`` seconds.

    Source: production-stack's session policy, routing_logic.py at a6c01db0; the defaults are
    kvsim's.

    Parameters
    ----------
    points : points of each replica on the ring
    window : seconds over which requests are counted
    """

    def __init__(self, *, points: Points = 160, window: Seconds = 60.0) -> None:
        self._points = points
        self._window = window

    def start(self, facts: Facts) -> None:
        super().start(facts)
        self._ring = HashRing(facts.num_replicas, self._points)
        self._rate = RequestRate(facts.num_replicas, self._window)

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        del replicas
        if request.session_id >= 0:
            self.branch = "session"
            choice = self._ring.owner(request.session_id)
        else:
            self.branch = "request rate"
            choice = self._rate.lowest(request.arrival_time)
        self._rate.count(choice, request.arrival_time)
        return choice
