"""Mooncake's Conductor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.parameters import Delay, Limit, refuse_unread
from kvsim.fleet.routing.choice import argmin
from kvsim.fleet.routing.prefix_affinity import PrefixAffinity
from kvsim.fleet.routing.router import REJECT, ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView


@ROUTERS.register("conductor")
class Conductor(Router):
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

    def __init__(
        self,
        *,
        ttft_slo: Limit | None = None,
        tbt_slo: Limit | None = None,
        threshold: Limit | None = None,
        event_delay: Delay = 0.01,
    ) -> None:
        self._ttft_slo, self._tbt_slo = ttft_slo, tbt_slo
        self._asked_threshold, self._threshold = threshold, threshold or 1.0
        self.event_delay = event_delay

    def start(self, facts: Facts) -> None:
        super().start(facts)
        if facts.fetch_time is None and not facts.decodes_only:
            refuse_unread("without --kv-store peer", threshold=self._asked_threshold)
        self._prefix_affinity = PrefixAffinity(facts, "precise")
        self._queues: list[dict[int, float]] = [{} for _ in range(facts.num_replicas)]

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        cached, steps = self._prefix_affinity.cached_tokens(request), self._steps(request, replicas)
        times = [0.0] * len(replicas)
        if self.facts.decodes_only:
            choice = argmin(steps)
        else:
            own = [self._time(request.num_prompt_tokens, n, max(cached)) for n in cached]
            times = [sum(q.values()) + t for q, t in zip(self._queues, own, strict=True)]
            choice = argmin(times)
        if self._is_late(times[choice], steps[choice]):
            self.branch, self.predicted_tokens = "turned away", None
            return REJECT
        self.predicted_tokens = cached[choice]
        if self.facts.decodes_only:
            self.branch = "fastest step"
            return choice
        longest = max(cached)
        self.branch = "longest match" if cached[choice] == longest else "shorter queue"
        if cached[choice] < longest and self._reads(cached[choice], longest):
            self.branch, self.predicted_tokens = "transfer", longest
        if not longest:
            self.branch = "no match"
        self._queues[choice][request.request_id] = own[choice]
        return choice

    def _reads(self, cached: int, longest: int) -> bool:
        """Return True if a replica with ``cached`` tokens reads the best match of another one."""
        return self.facts.fetch_time is not None and longest >= self._threshold * cached

    def _time(self, prompt: int, cached: int, longest: int) -> float:
        """Return the seconds until a prompt's first token at a replica with an empty queue."""
        if cached == longest or not self._reads(cached, longest):
            return self.facts.prefill_time(prompt, cached)
        assert self.facts.fetch_time is not None
        return self.facts.fetch_time(longest - cached) + self.facts.prefill_time(prompt, longest)

    def _steps(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> list[float]:
        """Return the seconds of a step of each replica if it also decoded this request."""
        needed = self._tbt_slo is not None or self.facts.decodes_only
        if not needed or self.facts.prefills_only:
            return [0.0] * len(replicas)
        steps = []
        for local in (replica.local for replica in replicas):
            number = local.num_requests + 1
            tokens = local.num_prompt_tokens + request.num_prompt_tokens
            steps.append(self.facts.step_time(number, tokens // number))
        return steps

    def _is_late(self, ttft: float, step: float) -> bool:
        """Return True if a predicted TTFT or step time exceeds its target."""
        late = self._ttft_slo is not None and ttft > self._ttft_slo
        return late or (self._tbt_slo is not None and step > self._tbt_slo)

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        del time
        self._queues[replica].pop(request_id, None)  # decode replicas have no queue of prompts
