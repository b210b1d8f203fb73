"""AIBrix's prefix-cache routing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Count,
    Limit,
    Weight,
)
from kvsim.fleet.routing.prefix_affinity import CHARS_PER_TOKEN, PrefixAffinity
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.routing import Balance
from kvsim.rules.routing.by_match import choose_aibrix_prefix_cache

if TYPE_CHECKING:
    from kvsim.fleet.facts import Facts
    from kvsim.records.memory import Memory

#: Characters of a chunk, which has one hash.
CHUNK = 128


@ROUTERS.register("aibrix-prefix-cache")
class AibrixPrefixCache(RuleRouter):
    """AIBrix's prefix-cache: the longest match on a replica that is not much busier than the mean.

    If the numbers of requests in flight differ by more than ``imbalance`` (maximum - minimum), only
    the replicas with the fewest are candidates. Of the candidates with at most ``mean + k * sigma``
    requests in flight, the replica with the longest match wins; ties are broken by load. The router
    records the prompt for this replica, in chunks of 128 characters.

    Source: pkg/plugins/gateway/algorithms of vllm-project/aibrix at e3e10f9e. Its code says 8 and
    1, its README 16 and 2; the defaults follow the code.

    Parameters
    ----------
    imbalance : largest difference of requests in flight at which all replicas are candidates
    k : allowed excess of requests in flight over the mean, standard deviations
    chunk_tokens : tokens of a chunk, of four characters each
    max_entries : chunks recorded per replica
    """

    looks_at_replicas = True
    rule = staticmethod(choose_aibrix_prefix_cache)
    branches = ("balanced", "matched", "no match")

    def __init__(
        self,
        *,
        imbalance: Weight = 8,
        k: Weight = 1.0,
        chunk_tokens: Count = CHUNK // CHARS_PER_TOKEN,
        max_entries: Limit = float("inf"),
    ) -> None:
        self._imbalance = imbalance
        self._k = k
        self._entries = {"entry_tokens": chunk_tokens, "max_entries": max_entries}

    def start(self, facts: Facts) -> None:
        super().start(facts)
        self.prefixes = PrefixAffinity(facts, **self._entries)  # type: ignore[arg-type]

    def make_state(self, memory: Memory) -> Balance:
        state = memory.one(Balance)
        state.imbalance, state.deviations = self._imbalance, self._k
        return state
