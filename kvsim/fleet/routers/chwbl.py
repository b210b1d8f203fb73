"""Consistent hashing of prefixes with bounded loads."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Count,
    Points,
    Weight,
)
from kvsim.fleet.routing.choice import queues
from kvsim.fleet.routing.hash_ring import HashRing
from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView

#: Tokens per piece of a prefix.
PIECE = 16


@ROUTERS.register("chwbl")
class BoundedLoads(Router):
    """Consistent hashing of the prompt's first tokens, past replicas that are too loaded.

    From the point of the prefix on the ring, the first replica with at most
    ``ceil((1 + epsilon) * mean)`` requests in flight wins. Stateless except for the loads.

    Source: Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350; proposed for LLMs in
    vllm-project/production-stack, issue 59. Points and length of the prefix are chosen here.

    Parameters
    ----------
    epsilon : allowed excess of a load over the mean, as a share of the mean
    prefix_tokens : prompt tokens that are hashed; a shorter prompt counts whole pieces of 16
    points : points of each replica on the ring
    """

    looks_at_replicas = True

    def __init__(
        self, *, epsilon: Weight = 0.25, prefix_tokens: Count = 64, points: Points = 160
    ) -> None:
        self._epsilon = epsilon
        self._num_pieces = max(prefix_tokens // PIECE, 1)
        self._points = points

    def start(self, facts: Facts) -> None:  # noqa: D102
        super().start(facts)
        self._ring = HashRing(facts.num_replicas, self._points)

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:  # noqa: D102
        loads = queues(replicas)
        bound = ceil((1 + self._epsilon) * sum(loads) / len(loads) - 1e-9)  # 1.1 * 10 is 11
        pieces = request.prefix_keys(PIECE)[: self._num_pieces]
        key = pieces[-1] if pieces else request.request_id
        for place, replica in enumerate(self._ring.walk(key)):
            if loads[replica] <= bound:
                self.branch = "spilled" if place else "owner"
                return replica
        raise AssertionError("the smallest load is never above the mean")
