"""Mooncake's Conductor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Delay, Limit, refuse_unread
from kvsim.fleet.routing.prefix_affinity import PrefixAffinity
from kvsim.fleet.routing.router import REJECT, ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.routing import FirstTokens
from kvsim.rules.routing.conductor import TRANSFER, choose_conductor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.records.memory import Memory


@ROUTERS.register("conductor")
class Conductor(RuleRouter):
    """Mooncake's Conductor: the replica with the earliest predicted first token, or a rejection.

    The predicted TTFT at a replica is ``T_queue`` plus the prefill time of the tokens that it does
    not cache; the smallest wins, the first on a tie. ``T_queue`` is the predicted time for the
    prompts that this gateway has sent to the replica and that have no first token. If replicas read
    each other's memory (``--kv-store peer``) and the best match is at least ``threshold`` times as
    long as a replica's own, the replica reads the difference: ``T_transfer`` is added, and only the
    remaining tokens are prefilled.

    In a decode pool, the replica with the shortest predicted step wins; the step includes this
    request. A request is rejected if the predicted TTFT exceeds ``ttft-slo``, or the predicted step
    exceeds ``tbt-slo``.

    Source: Mooncake, arXiv 2407.00079, section 6, algorithm 1. There, early rejection uses the
    decode load predicted for the end of the prefill; here it uses the present load.

    Parameters
    ----------
    ttft_slo : longest time to first token, seconds; none for no limit
    tbt_slo : longest time between two tokens, seconds; none for no limit
    threshold : smallest ratio of the best match to the replica's own for which the replica reads
        the difference; with 1 it reads whenever the best match is longer
    event_delay : seconds from a step's end until the index is updated
    """

    watches_requests = True
    predicts_seconds = True
    rule = staticmethod(choose_conductor)
    branches = (
        "turned away",
        "fastest step",
        "longest match",
        "shorter queue",
        "transfer",
        "no match",
    )

    def __init__(
        self,
        *,
        ttft_slo: Limit | None = None,
        tbt_slo: Limit | None = None,
        threshold: Limit | None = None,
        event_delay: Delay = 0.01,
    ) -> None:
        self._ttft_slo, self._tbt_slo = ttft_slo, tbt_slo
        self._threshold = threshold
        self.event_delay = event_delay

    def start(self, facts: Facts) -> None:
        super().start(facts)
        if facts.fetch_time is None and not facts.decodes_only:
            refuse_unread("without --kv-store peer", threshold=self._threshold)
        self.prefixes = PrefixAffinity(facts, "precise")
        self._queues: list[dict[int, float]] = [{} for _ in range(facts.num_replicas)]

    def make_state(self, memory: Memory) -> FirstTokens:
        state, facts = memory.one(FirstTokens), self.facts
        state.ttft_slo, state.tbt_slo = self._ttft_slo or math.inf, self._tbt_slo or math.inf
        state.threshold = self._threshold or 1.0
        state.only_decodes, state.can_read = facts.decodes_only, facts.fetch_time is not None
        facts.set_price(state.price, memory)
        return state

    @property
    def is_plain(self) -> bool:
        has_target = self._ttft_slo is not None or self._tbt_slo is not None
        beside = has_target or self.facts.decodes_only or self.facts.fetch_time is not None
        return self.facts.price_prefills is not None and not beside

    def see(self, replicas: Sequence[ReplicaView], cached: Sequence[int]) -> None:
        super().see(replicas, cached)
        steps = self._steps(replicas)
        for one, queue, step in zip(self.placement.candidates, self._queues, steps, strict=True):
            one.step_seconds, one.queued_seconds = step, 0.0
            for seconds in queue.values():  # in order: sum() adds otherwise from Python 3.12 on
                one.queued_seconds += seconds

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        assert self.prefixes is not None
        cached = self.prefixes.cached_tokens(request)
        self.describe(request, cached)
        self.see(replicas, cached)
        choice = self.apply()
        if choice == REJECT:
            self.predicted_tokens = None
            return choice
        reads = self.placement.branch == TRANSFER
        self.predicted_tokens = self.placement.most_held if reads else cached[choice]
        if not self.facts.decodes_only:  # decode replicas have no queue of prompts
            own = self.placement.candidates[choice].own_seconds
            self._queues[choice][request.request_id] = own
        return choice

    def _steps(self, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return the seconds of a step of each replica if it also decoded this request."""
        needed = self._tbt_slo is not None or self.facts.decodes_only
        if not needed or self.facts.prefills_only:
            return [0.0] * len(replicas)
        steps = []
        for local in (replica.local for replica in replicas):
            number = local.num_requests + 1
            tokens = local.num_prompt_tokens + self.placement.num_prompt_tokens
            steps.append(self.facts.step_time(number, tokens // number))
        return steps

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        del time
        self._queues[replica].pop(request_id, None)
