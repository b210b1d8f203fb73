"""vLLM production-stack's prefix-aware routers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvsim.fleet.parameters import Count, Delay, Weight, Whole, refuse_unread
from kvsim.fleet.routing.hash_ring import HashRing
from kvsim.fleet.routing.prefix_affinity import CHARS_PER_TOKEN, EVENT_DELAY, PrefixAffinity
from kvsim.fleet.routing.request_rate import RequestRate
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.record import NONE
from kvsim.records.routing import Balance, Lookups
from kvsim.rules.blocks.keys import mix
from kvsim.rules.routing.by_load import POINT
from kvsim.rules.routing.by_match import choose_kvaware, choose_load_aware
from kvsim.rules.routing.pick import any_longest_match

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.records.memory import Memory

#: Characters of a chunk of the prefix trie.
CHUNK = 128
#: Tokens by which a match may be shorter than the prompt.
THRESHOLD = 2000
#: Points of each replica on the hash ring, and seconds over which requests count, as in `session`.
POINTS, WINDOW = 160, 60.0
#: By policy: the rule and its branches.
RULES: dict[str, tuple[Callable[..., int], tuple[str, ...]]] = {
    "prefixaware": (any_longest_match, ("anybody", "matched")),
    "kvaware": (choose_kvaware, ("relieved", "matched", "session", "request rate")),
    "loadaware": (choose_load_aware, ("weighed",)),
}


@ROUTERS.register("production-stack")
class ProductionStack(RuleRouter):
    """production-stack: by prefix trie, by KV look-up, or by match against load.

    - ``prefixaware``: a trie has all prompts sent, in chunks of 128 characters, and evicts none. A
      random one of the replicas with the longest match wins; without a match, any replica.
    - ``kvaware``: the longest match in the replicas' caches wins. If it is shorter than ``prompt -
      threshold`` tokens, the session's owner on a hash ring wins; without a session, the replica
      with the fewest recent requests.
    - ``loadaware``: the largest ``matched / prompt - beta * (load - mean) / max(1, mean)`` wins,
      the first on a tie; loads are requests in flight.

    Source: routing_logic.py of vllm-project/production-stack at a6c01db0; ``loadaware`` as proposed
    there in pull request 1035, and ``relief`` in 884. The replicas' events stand in for LMCache's
    controller.

    Parameters
    ----------
    policy : ``prefixaware``, ``kvaware`` or ``loadaware``
    threshold : tokens by which a match may be shorter than the prompt (``kvaware``), 2000
    relief : difference between the most and the fewest requests in flight from which the replica
        with the fewest wins (``kvaware``); none for never
    beta : weight of the load (``loadaware``), 1
    event_delay : seconds from a step's end until look-ups have its blocks (not ``prefixaware``),
        0.01
    chunk_tokens : tokens of a chunk (``prefixaware``), 32, of four characters each
    """

    prefixes: PrefixAffinity

    def __init__(
        self,
        *,
        policy: Literal["prefixaware", "kvaware", "loadaware"] = "prefixaware",
        threshold: Whole | None = None,
        relief: Count | None = None,
        beta: Weight | None = None,
        event_delay: Delay | None = None,
        chunk_tokens: Count | None = None,
    ) -> None:
        self._policy = policy
        self.rule, self.branches = RULES[policy]
        self.hashes_sessions = policy == "kvaware"
        why = f"with policy={policy}"
        if policy != "kvaware":
            refuse_unread(why, threshold=threshold, relief=relief)
        if policy != "loadaware":
            refuse_unread(why, beta=beta)
        if policy == "prefixaware":
            refuse_unread(why, event_delay=event_delay)
        else:
            refuse_unread(why, chunk_tokens=chunk_tokens)
        self._threshold = THRESHOLD if threshold is None else threshold
        self._relief = relief
        self._beta = 1.0 if beta is None else beta
        self._chunk_tokens = chunk_tokens or CHUNK // CHARS_PER_TOKEN
        delay = EVENT_DELAY if event_delay is None else event_delay
        self.event_delay = None if policy == "prefixaware" else delay
        self.looks_at_replicas = policy == "loadaware" or relief is not None

    def start(self, facts: Facts) -> None:
        super().start(facts)
        kind = "approximate" if self._policy == "prefixaware" else "precise"
        self.prefixes = PrefixAffinity(facts, kind, entry_tokens=self._chunk_tokens)  # type: ignore[arg-type]

    def make_state(self, memory: Memory) -> Balance | Lookups | None:
        if self._policy == "prefixaware":
            return None
        if self._policy == "kvaware":
            return self._make_lookups(memory)
        state = memory.one(Balance)
        state.ratio = self._beta
        return state

    def _make_lookups(self, memory: Memory) -> Lookups:
        state = memory.one(Lookups)
        state.threshold = self._threshold
        state.relief = NONE if self._relief is None else self._relief
        HashRing(self.facts.num_replicas, POINTS).lay_out(state.ring, memory)
        self._rate = RequestRate(self.facts.num_replicas, WINDOW)
        state.recent = memory.list_of(self._rate.counts)
        return state

    def describe(self, request: IncomingRequest, cached: Sequence[int]) -> None:
        super().describe(request, cached)
        if self.hashes_sessions:
            session = request.session_id
            self.placement.ring_key = mix(POINT, session) if session >= 0 else NONE
            self._rate.forget(request.arrival_time)
            self.state.recent = self._rate.counts

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        choice = super().choose(request, replicas)
        if self.hashes_sessions:
            self._rate.count(choice, request.arrival_time)
        return choice
