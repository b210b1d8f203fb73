"""Consistent hashing of prefixes with bounded loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Count,
    Points,
    Weight,
)
from kvsim.fleet.routing.hash_ring import HashRing
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.routing import BoundedRing
from kvsim.rules.blocks.keys import mix
from kvsim.rules.routing.by_load import POINT, choose_chwbl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.records.memory import Memory

#: Tokens per key of a prefix.
PIECE = 16


@ROUTERS.register("chwbl")
class BoundedLoads(RuleRouter):
    """Consistent hashing of the prompt's first tokens that skips overloaded replicas.

    From the point of the prefix on the ring, the first replica with at most
    ``ceil((1 + epsilon) * mean)`` requests in flight wins. The loads are the router's only state.

    Source: Mirrokni, Thorup and Zadimoghaddam, arXiv 1608.01350; proposed for LLMs in
    vllm-project/production-stack, issue 59. The defaults are kvsim's.

    Parameters
    ----------
    epsilon : allowed excess of a load over the mean, as a share of the mean
    prefix_tokens : number of first tokens that are hashed, rounded down to a multiple of 16
    points : points of each replica on the ring
    """

    looks_at_replicas = True
    rule = staticmethod(choose_chwbl)
    branches = ("owner", "spilled")

    def __init__(
        self, *, epsilon: Weight = 0.25, prefix_tokens: Count = 64, points: Points = 160
    ) -> None:
        self._epsilon = epsilon
        self.num_pieces = max(prefix_tokens // PIECE, 1)
        self._points = points

    def make_state(self, memory: Memory) -> BoundedRing:
        state = memory.one(BoundedRing)
        state.epsilon = self._epsilon
        HashRing(self.facts.num_replicas, self._points).lay_out(state, memory)
        return state

    def describe(self, request: IncomingRequest, cached: Sequence[int]) -> None:
        super().describe(request, cached)
        pieces = request.prefix_keys(PIECE)[: self.num_pieces]
        self.placement.ring_key = mix(POINT, pieces[-1] if pieces else request.request_id)
