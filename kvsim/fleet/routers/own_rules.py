"""The router that applies a user's rules."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

from kvsim.fleet.routing.prefix_affinity import PrefixAffinity
from kvsim.fleet.routing.rule_router import RuleRouter, draw_words
from kvsim.records.part import Part

if TYPE_CHECKING:
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.router_rules import RouterRules
    from kvsim.records.memory import Memory


class OwnRouter(RuleRouter):
    """A router that chooses by a user's rules.

    Parameters
    ----------
    rules : the rules, which the router copies
    """

    looks_at_replicas = True

    def __init__(self, rules: RouterRules) -> None:
        self._rules = rules
        self.watches_requests, self.scrape_interval = rules.watches_requests, rules.scrape_interval
        self.event_delay = rules.event_delay if rules.knows == "precise" else None
        self.branches = rules.branches

    def start(self, facts: Facts) -> None:
        super().start(facts)
        rules = self._rules
        if rules.knows is not None:
            self.prefixes = PrefixAffinity(
                facts, rules.knows, entry_tokens=rules.entry_tokens, max_entries=rules.max_entries
            )

    def make_state(self, memory: Memory) -> Any:
        rules = self._rules
        given = {name: getattr(rules, name) for name in rules.parameters()}
        made = type(rules)(**given).init_state(memory.one(Part), memory, {})
        return made.view if memory.compiled else made

    def entry_address(self) -> int:
        from kvsim.compiled.user_rules import addresses

        return addresses(type(self._rules))[0]

    def apply(self) -> int:
        draw_words(self.placement.draws, self.facts.rng)
        place = self.state.choose(self.placement)
        if not isinstance(place, Integral) or place not in range(self.placement.num_candidates):
            raise self.wrong_choice(place)
        self.branch = self.branch_name(self.placement.branch)
        return int(place)

    @property
    def rules_name(self) -> str:
        return type(self._rules).__name__

    def wrong_choice(self, place: float) -> ValueError:
        """Return the error for a choice that is no index of a candidate."""
        return ValueError(
            f"router {self.rules_name} chose {place}: must be a whole number, 0 to "
            f"{self.placement.num_candidates - 1}, the index of a candidate"
        )
