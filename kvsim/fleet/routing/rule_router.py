"""Routers that choose by a rule over records, which runs as Python or compiled."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvsim.fleet.routing.router import Router
from kvsim.records.memory import Objects
from kvsim.records.routing import Candidate, Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.prefix_affinity import PrefixAffinity
    from kvsim.fleet.routing.text_tree import TextTree
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.records.memory import Memory
    from kvsim.records.routing import Draws

#: Random words drawn at once, and the number left below which more are drawn.
WORDS, FEWEST_WORDS = 1024, 64


class RuleRouter(Router):
    """A router with a rule ``rule(placement)``, or ``rule(state, placement)`` if it has a state.

    Attributes
    ----------
    rule : the rule; it returns the index of a candidate
    branches : names of the branches that the rule numbers
    follows_prompts : the rule reads the number of different blocks in each replica's prompts
    reads_sizes : the rule reads the number of entries of each replica's tree
    hashes_sessions : the rule reads the position of the session on a hash ring
    counts_misses : the state counts the misses of recent prompts; see ``PrebleCosts``
    predicts_seconds : the rule writes ``own_seconds`` of a candidate, and reads ``queued_seconds``
    state : the router's own record, None for none
    placement : the request, the candidates and the random draws of the next choice
    prefixes : the router's prediction of cached prefixes, None for none
    """

    rule: Callable[..., int]
    branches: tuple[str, ...] = ("",)
    follows_prompts: ClassVar[bool] = False
    reads_sizes: ClassVar[bool] = False
    counts_misses: ClassVar[bool] = False
    hashes_sessions: bool = False
    predicts_seconds: ClassVar[bool] = False
    prefixes: PrefixAffinity | TextTree | None = None
    state: Any = None
    placement: Placement

    def start(self, facts: Facts) -> None:
        super().start(facts)
        self.init_state(Objects())

    def init_state(self, memory: Memory) -> None:
        """Make the initial records of a router. Mutates."""
        number = self.facts.num_replicas
        self.placement = placement = memory.one(Placement)
        placement.candidates = memory.records(Candidate, number)
        placement.costs = memory.floats(number)
        for k in range(number):
            placement.candidates[k].index = k
            placement.candidates[k].as_of = self.facts.start_time
        placement.num_candidates = number
        self.state = self.make_state(memory)

    def make_state(self, memory: Memory) -> Any:
        """Return the router's own record, or None."""
        del memory

    def reserve(self, memory: Memory, number: int) -> None:
        """Make room in the state for a number of further entries of prompts. Mutates."""
        del memory, number

    @property
    def is_plain(self) -> bool:
        """Return True if the rule alone decides under this configuration."""
        return True

    def entry_address(self) -> int:
        """Return the address of the rule's machine code; 0 if it has none."""
        from kvsim.compiled.entry import router_address

        return router_address(self.rule)

    def describe(self, request: IncomingRequest, cached: Sequence[int]) -> None:
        """Write a request and its cached prefixes into the placement. Mutates."""
        placement = self.placement
        placement.request_id = request.request_id
        placement.num_prompt_tokens = request.num_prompt_tokens
        if self.prefixes is not None:
            placement.num_entries = self.prefixes.num_entries(request)
            placement.entry_tokens = self.prefixes.entry_tokens
            held = [tokens for tokens in cached if tokens]
            placement.least_held, placement.most_held = min(held, default=0), max(held, default=0)

    def see(self, replicas: Sequence[ReplicaView], cached: Sequence[int]) -> None:
        """Write the candidates into the placement. Mutates."""
        placement = self.placement
        placement.num_candidates = len(replicas)
        asks = self.looks_at_replicas or self.watches_requests
        for view, one in zip(replicas, placement.candidates, strict=False):
            one.index = view.index
            if asks:
                one.num_outstanding = view.num_outstanding()
            if self.watches_requests:
                one.num_prompt_tokens = view.local.num_prompt_tokens
                one.num_uncached_tokens = view.local.num_uncached_tokens
            if self.scrape_interval is not None:
                (
                    one.as_of,
                    one.num_waiting,
                    one.num_running,
                    one.kv_usage,
                    one.prompt_tokens,
                    one.generation_tokens,
                ) = view.scraped
            if cached:
                one.cached_tokens = cached[view.index]
            if self.reads_sizes and self.prefixes is not None:
                one.num_entries = self.prefixes.size(view.index)

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        cached = self.prefixes.cached_tokens(request) if self.prefixes is not None else []
        self.describe(request, cached)
        self.see(replicas, cached)
        place = self.apply()
        if self.prefixes is not None:
            chosen = replicas[place].index
            self.prefixes.sent(request, chosen)
            self.predicted_tokens = cached[chosen]
        return place

    def apply(self) -> int:
        """Apply the rule to the placement, and record its branch. Mutates."""
        draw_words(self.placement.draws, self.facts.rng)
        given = (self.placement,) if self.state is None else (self.state, self.placement)
        place = self.rule(*given)
        self.branch = self.branch_name(self.placement.branch)
        return place

    def branch_name(self, number: int) -> str:
        """Return the name of a branch that the rule has written.

        Raises
        ------
        ValueError
            If the number has no name.
        """
        if not isinstance(number, Integral) or number not in range(len(self.branches)):
            raise ValueError(
                f"router {self.rules_name}: placement.branch = {number}: must be a whole number, "
                f"0 to {len(self.branches) - 1}, the index of a name in branches"
            )
        return self.branches[number]

    @property
    def rules_name(self) -> str:
        """Return the name of the class with the rules."""
        return type(self).__name__


def draw_words(
    draws: Draws, rng: Generator, memory: Memory | None = None, *, fewest: int = FEWEST_WORDS
) -> None:
    """Draw random 64-bit words into ``draws``, if fewer than ``fewest`` are left. Mutates."""
    if draws.num_words - draws.next_word >= fewest:
        return
    words = rng.bit_generator.random_raw(max(WORDS, fewest))
    left = list(draws.halves)[2 * draws.next_word : 2 * draws.num_words]
    halves = np.stack((words & np.uint64(2**32 - 1), words >> np.uint64(32)), axis=1)
    taken = [*left, *halves.astype(np.int64).ravel().tolist()]
    if memory is None:
        draws.halves = taken
    else:
        memory.replace(draws, halves=memory.list_of(taken))
    draws.num_words, draws.next_word = len(taken) // 2, 0
