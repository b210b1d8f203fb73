"""The kv_aware policy of vLLM's router."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Delay  # noqa: TC001 - checked when a run is configured
from kvsim.fleet.routing.prefix_affinity import PrefixAffinity
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.rules.routing.by_match import choose_kv_aware

if TYPE_CHECKING:
    from kvsim.fleet.facts import Facts


@ROUTERS.register("vllm-kv-aware")
class VllmKvAware(RuleRouter):
    """vllm-router's kv_aware: the smallest ``tokens to prefill * (requests in flight + 1)``.

    The tokens to prefill at a replica are the tokens of this prompt that it does not hold by its KV
    cache events, plus such tokens of earlier prompts that have no first token yet. The first wins
    on a tie.

    Source: recorded choices of vllm-router 0.1.17 between two servers, see docs/howto/live.md.

    Parameters
    ----------
    event_delay : seconds from a step's end until the index is updated
    """

    looks_at_replicas = True
    watches_requests = True
    rule = staticmethod(choose_kv_aware)

    def __init__(self, *, event_delay: Delay = 0.001) -> None:
        self.event_delay = event_delay

    def start(self, facts: Facts) -> None:
        super().start(facts)
        self.prefixes = PrefixAffinity(facts, "precise")
