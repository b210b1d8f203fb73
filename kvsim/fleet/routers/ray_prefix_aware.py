"""Ray Serve's prefix-aware router."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Count,
    Limit,
    Seconds,
    Share,
)
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.fleet.routing.text_tree import TextTree
from kvsim.records.routing import Balance
from kvsim.rules.routing.by_match import choose_ray_prefix_aware

if TYPE_CHECKING:
    from kvsim.fleet.facts import Facts
    from kvsim.records.memory import Memory


@ROUTERS.register("ray-prefix-aware")
class RayPrefixAware(RuleRouter):
    """Ray Serve's PrefixCacheAffinityRouter: the best match, or else the smallest tree.

    If the numbers of requests in flight differ by more than ``imbalanced-threshold`` (maximum -
    minimum), the better of two random replicas wins, as in power-of-two. Otherwise the candidates
    are the replicas with the best match, or, if this match is below ``match-rate`` of the prompt,
    the replicas with the smallest tree. The candidate with the fewest requests in flight wins, the
    first on a tie.

    Source: ray-project/ray, prefix_aware_router.py at 06c16f2, with its defaults; the default
    ``imbalanced-threshold`` is never exceeded. Ray's tree has text; here it has entries of
    ``entry-tokens`` tokens of four characters each.

    Parameters
    ----------
    imbalanced_threshold : difference of requests in flight above which matches are ignored
    match_rate : least share of the prompt that must match
    eviction_interval : seconds between evictions of the least recently used leaves
    eviction_threshold : characters per replica above which leaves are evicted
    eviction_target : characters per replica that remain after an eviction
    entry_tokens : tokens per entry
    """

    looks_at_replicas = True
    reads_sizes = True
    rule = staticmethod(choose_ray_prefix_aware)
    branches = ("balanced", "matched", "smallest tree")

    def __init__(
        self,
        *,
        imbalanced_threshold: Limit = math.inf,
        match_rate: Share = 0.1,
        eviction_interval: Seconds = 10.0,
        eviction_threshold: Limit = 400_000,
        eviction_target: Limit = 360_000,
        entry_tokens: Count = 16,
    ) -> None:
        if eviction_target > eviction_threshold:
            raise ValueError(
                f"router 'ray-prefix-aware': eviction-target={eviction_target:g}: must not be "
                f"above eviction-threshold ({eviction_threshold:g})"
            )
        self._gate = imbalanced_threshold
        self._match_rate = match_rate
        self._tree_options = {
            "entry_tokens": entry_tokens,
            "interval": eviction_interval,
            "most": eviction_threshold,
            "target": eviction_target,
        }

    def start(self, facts: Facts) -> None:
        super().start(facts)
        self.prefixes = TextTree(facts, **self._tree_options)  # type: ignore[arg-type]

    def make_state(self, memory: Memory) -> Balance:
        state = memory.one(Balance)
        state.least_match, state.imbalance = self._match_rate, self._gate
        return state
