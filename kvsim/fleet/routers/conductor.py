"""Mooncake's Conductor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.fleet.belief import Belief
from kvsim.fleet.choice import argmin
from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Delay,
    Limit,
)
from kvsim.fleet.router import REJECT, ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.view import ReplicaView


@ROUTERS.register("conductor")
class Conductor(Router):
    """Mooncake's Conductor: the earliest first token that is predicted, or nobody.

    The time to the first token at a replica is what is queued there, ``T_queue``, and the prefill
    of this prompt behind what is cached there; the smallest wins, the first of equals. ``T_queue``
    is the predicted prefill of the requests that this gateway sent there and that have no first
    token. With ``ttft-slo``, a request that would wait longer anywhere is turned away.

    Source: Mooncake, arXiv 2407.00079, section 6, algorithm 1. Its other branch, to fetch a longer
    prefix from another instance first, needs transfers between replicas, which there are none of
    here: every prefix is computed where it is missing. One replica does prefill and decode.

    Parameters
    ----------
    ttft_slo : seconds until the first token; none for no limit
    event_delay : seconds from a step's end until the index knows
    """

    watches_requests = True

    def __init__(self, *, ttft_slo: Limit | None = None, event_delay: Delay = 0.01) -> None:
        self._slo = ttft_slo
        self.event_delay = event_delay

    def start(self, facts: Facts) -> None:  # noqa: D102
        super().start(facts)
        self._belief = Belief(facts, "precise")
        self._queues: list[dict[int, float]] = [{} for _ in range(facts.num_replicas)]

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:  # noqa: D102
        del replicas
        cached, prompt = self._belief.cached_tokens(request), request.num_prompt_tokens
        own = [self.facts.prefill_time(prompt, tokens) for tokens in cached]
        waits = [sum(queue.values()) for queue in self._queues]
        times = [wait + prefill for wait, prefill in zip(waits, own, strict=True)]
        choice = argmin(times)
        if self._slo is not None and times[choice] > self._slo:
            self.branch, self.predicted_tokens = "turned away", None
            return REJECT
        longest = max(cached)
        self.branch = "longest match" if cached[choice] == longest else "shorter queue"
        if not longest:
            self.branch = "no match"
        self._queues[choice][request.request_id] = own[choice]
        self.predicted_tokens = cached[choice]
        return choice

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:  # noqa: D102
        del time
        del self._queues[replica][request_id]
