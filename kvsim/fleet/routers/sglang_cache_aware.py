"""SGLang's cache-aware router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Count,
    Limit,
    Seconds,
    Share,
    Weight,
)
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.fleet.routing.text_tree import TextTree
from kvsim.records.routing import Balance
from kvsim.rules.routing.by_match import choose_cache_aware

if TYPE_CHECKING:
    from kvsim.fleet.facts import Facts
    from kvsim.records.memory import Memory


@ROUTERS.register("sglang-cache-aware")
class SglangCacheAware(RuleRouter):
    """SGLang's cache_aware: the longest match, unless loads are far apart or nothing matches.

    Loads are far apart if the largest and the smallest number of requests in flight satisfy
    ``max - min > balance-abs`` and ``max > balance-rel * min``. Then the replica with the fewest
    wins. Otherwise, if the longest match is above ``cache-threshold`` of the prompt, the replica
    with this match wins; else the replica with the smallest tree. The first wins on a tie. The
    winner's tree receives the prompt.

    The rule has a known weakness: with few requests in flight loads never count as far apart, and
    one replica may serve all requests that share a prefix (sgl-project/sglang, issue 21199).

    Source: sgl-router/src/policies/cache_aware.rs at 026f853, with its defaults. Its tree has
    text; here it has entries of ``entry-tokens`` tokens of four characters each.

    Parameters
    ----------
    cache_threshold : share of the prompt that must match
    balance_abs, balance_rel : difference and ratio of requests in flight above which loads are far
        apart
    eviction_interval : seconds between evictions of the least recently used leaves
    max_tree_size : characters per replica that remain after an eviction
    entry_tokens : tokens per entry
    """

    looks_at_replicas = True
    reads_sizes = True
    rule = staticmethod(choose_cache_aware)
    branches = ("balanced", "matched", "smallest tree")

    def __init__(
        self,
        *,
        cache_threshold: Share = 0.3,
        balance_abs: Weight = 64,
        balance_rel: Weight = 1.5,
        eviction_interval: Seconds = 120.0,
        max_tree_size: Limit = 67_108_864,
        entry_tokens: Count = 16,
    ) -> None:
        self._threshold = cache_threshold
        self._abs, self._rel = balance_abs, balance_rel
        self._interval = eviction_interval
        self._most = max_tree_size
        self._entry_tokens = entry_tokens

    def start(self, facts: Facts) -> None:
        super().start(facts)
        self.prefixes = TextTree(
            facts,
            entry_tokens=self._entry_tokens,
            interval=self._interval,
            most=self._most,
            target=self._most,
        )

    def make_state(self, memory: Memory) -> Balance:
        state = memory.one(Balance)
        state.least_match, state.imbalance, state.ratio = self._threshold, self._abs, self._rel
        return state
