"""llm-d's scheduler, the Gateway API inference extension: filter, weighted scores, picker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kvsim.fleet.parameters import (
    Count,
    Delay,
    Interval,
    Limit,
    Seconds,
    Share,
    Weight,
    refuse_unread,
)
from kvsim.fleet.routing.affinity import lead, sticky
from kvsim.fleet.routing.choice import queues
from kvsim.fleet.routing.no_hit_lru import NoHitLru
from kvsim.fleet.routing.prefix_affinity import Kind, PrefixAffinity, delay_of, entries_of
from kvsim.fleet.routing.router import REJECT, ROUTERS
from kvsim.fleet.routing.rule_router import FEWEST_WORDS, RuleRouter, draw_words
from kvsim.fleet.scaling.headroom import Headroom, can_be_shed, latency_scores, meeting
from kvsim.fleet.scaling.latency_forecast import forecast
from kvsim.records.routing import ScoreWeights
from kvsim.rules.routing.draws import random_below, random_share
from kvsim.rules.routing.llm_d import choose_llm_d, score
from kvsim.rules.routing.pick import any_least_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.records.memory import Memory

#: Weights of prefix, queue and KV usage: as deployed with events, and the defaults without.
WEIGHTS = {"precise": (3.0, 2.0, 2.0), "approximate": (1.0, 1.0, 1.0)}
#: Defaults of the filter: the share of requests that bypass it, and its TTFT penalty in seconds.
EXPLORE, MAX_TTFT_PENALTY = 0.01, 5.0
#: Defaults of predicted latencies: weights of TTFT and TPOT, and the share of requests that go to
#: replicas that miss the targets.
LATENCY_WEIGHTS, EXPLORE_LATE = (0.8, 0.2), 0.01


@ROUTERS.register("llm-d")
class LlmD(RuleRouter):
    """llm-d: the largest weighted sum of scores between 0 and 1, after an optional prefix filter.

    Scores: the cached share of the prompt (``prefix``); waiting requests (``queue``) and running
    ones (``running``), from 1 for the fewest to 0 for the most; the free share of the KV cache
    (``kv``); requests (``active``) and tokens (``tokens``) in flight; the load-aware score of
    waiting requests (``load``); 1 for the replica of the session (``session``); a rank that spreads
    prompts that no replica holds (``no-hit-lru``). A weight of 0 switches a score off.

    The filter keeps only the replicas that hold at least ``affinity`` of the prompt. It does not
    apply to a share ``explore`` of the requests, nor if the best of these replicas is predicted to
    return the first token more than ``max-ttft-penalty`` seconds later than the best other one.

    The latency score is predicted from the run's step times and this gateway's requests in flight
    at a replica. Without targets the lowest latency is best. With ``ttft-slo`` or ``tpot-slo`` only
    the replicas that meet them are candidates, except for a share ``explore-late`` of the requests;
    the candidate with the least headroom (or the most) is best. With one target, only its latency
    counts (llm-d treats an unset target of TTFT as missed).

    A request with a priority above 0 is rejected if no replica meets the targets, none is idle, and
    each has at least 2 % of its KV cache in use.

    Source: llm-d-inference-scheduler at 520af478, pkg/epp/framework/plugins/scheduling; weights of
    its precise deployment: llm-d-kv-cache-manager at a378f5b3, benchmark 73; latency: llm-d-router
    at 2b0e7579. llm-d predicts latencies by a model trained on measured requests, with errors of
    about 5 %.

    Parameters
    ----------
    index : ``precise`` follows the replicas' events, ``approximate`` records the requests sent
    prefix, queue, kv : weights of these scores; by default 3, 2, 2 with a precise index and 1, 1, 1
        with an approximate one
    running, active, tokens, load, session, no_hit_lru, latency : weights of these scores
    picker : ``max-score`` (ties at random), ``weighted-random`` or ``random``
    affinity : least cached share of the prompt that passes the filter, 0 for no filter
    explore : share of the requests that bypass the filter, 0.01
    max_ttft_penalty : seconds of TTFT that the filter may cost, 5
    scrape_interval : seconds between two scrapes of the metrics
    event_delay : seconds from a step's end until the precise index is updated, 0.01
    block_size, lru_entries : size of the approximate index, 64 tokens, 31,250 entries per replica
    max_blocks : largest number of a prompt's entries that are looked up in the approximate index
    prefix_scale : score of a match: with ``prompt`` its share of the prompt, with ``holders`` its
        position between the shortest and the longest match
    ttft_slo, tpot_slo : targets of the latency score, seconds; none by default
    headroom : ``least`` packs requests where targets are just met, ``most`` spreads them
    ttft_weight, tpot_weight : weights within the latency score, 0.8 and 0.2
    explore_late : share of the requests that go to replicas that miss the targets, 0.01
    """

    watches_requests = True

    takes_changes = True
    rule = staticmethod(choose_llm_d)
    branches = ("scores",)
    prefixes: PrefixAffinity

    def __init__(
        self,
        *,
        index: Kind = "approximate",
        prefix: Weight | None = None,
        queue: Weight | None = None,
        kv: Weight | None = None,
        running: Weight = 0.0,
        active: Weight = 0.0,
        tokens: Weight = 0.0,
        load: Weight = 0.0,
        session: Weight = 0.0,
        no_hit_lru: Weight = 0.0,
        picker: Literal["max-score", "weighted-random", "random"] = "max-score",
        affinity: Share = 0.0,
        explore: Share | None = None,
        max_ttft_penalty: Limit | None = None,
        scrape_interval: Interval = 0.05,
        event_delay: Delay | None = None,
        block_size: Count | None = None,
        lru_entries: Count | None = None,
        max_blocks: Count | None = None,
        prefix_scale: Literal["prompt", "holders"] = "prompt",
        latency: Weight = 0.0,
        ttft_slo: Seconds | None = None,
        tpot_slo: Seconds | None = None,
        headroom: Literal["least", "most"] | None = None,
        ttft_weight: Weight | None = None,
        tpot_weight: Weight | None = None,
        explore_late: Share | None = None,
    ) -> None:
        self._entries: dict[str, Any] = entries_of(
            index, event_delay, block_size, lru_entries, max_blocks
        )
        if not affinity:
            no_filter = {"explore": explore, "max_ttft_penalty": max_ttft_penalty}
            refuse_unread("without affinity", **no_filter)
        given = zip((prefix, queue, kv), WEIGHTS[index], strict=True)
        self._prefix, self._queue, self._kv = (d if w is None else w for w, d in given)
        self._running, self._active, self._tokens = running, active, tokens
        self._load, self._session, self._no_hit_lru = load, session, no_hit_lru
        weights = self._prefix, self._queue, self._kv, running, active, tokens
        if picker != "random" and not any((*weights, load, session, no_hit_lru, latency)):
            raise ValueError("router 'llm-d': all weights are 0: nothing is scored")
        self._picker = picker
        self._affinity = affinity
        self._explore = EXPLORE if explore is None else explore
        self._penalty = MAX_TTFT_PENALTY if max_ttft_penalty is None else max_ttft_penalty
        self.scrape_interval = scrape_interval
        self._kind = index
        self.event_delay = delay_of(index, event_delay)
        self._is_relative = prefix_scale == "holders"
        targets = {"ttft_slo": ttft_slo, "tpot_slo": tpot_slo}
        self._has_targets = any(targets.values())
        if not latency:
            inside = {"ttft_weight": ttft_weight, "tpot_weight": tpot_weight}
            refuse_unread("without latency", **targets, **inside)
        if not self._has_targets:
            why = "without ttft-slo or tpot-slo"
            refuse_unread(why, headroom=headroom, explore_late=explore_late)
        self._latency = latency
        self._targets = ttft_slo, tpot_slo
        asked = zip((ttft_weight, tpot_weight), LATENCY_WEIGHTS, strict=True)
        first, second = (d if w is None else w for w, d in asked)
        self._latency_weights = first, second
        self._most = headroom == "most"
        self._explore_late = EXPLORE_LATE if explore_late is None else explore_late

    def start(self, facts: Facts) -> None:
        super().start(facts)
        self.prefixes = PrefixAffinity(facts, self._kind, **self._entries)
        self._cold = NoHitLru()
        self._homes: dict[int, int] = {}  # replica of each session

    def make_state(self, memory: Memory) -> ScoreWeights:
        state = memory.one(ScoreWeights)
        state.prefix, state.queue, state.kv = self._prefix, self._queue, self._kv
        state.running, state.active, state.tokens = self._running, self._active, self._tokens
        state.load, state.among_holders = self._load, self._is_relative
        state.is_random = self._picker == "random"
        return state

    @property
    def is_plain(self) -> bool:
        others = self._session, self._no_hit_lru, self._latency, self._affinity
        return self._picker != "weighted-random" and not any(others)

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        if self.is_plain:
            return super().choose(request, replicas)
        cached = self.prefixes.cached_tokens(request)
        draw_words(self.placement.draws, self.facts.rng)
        kept = self._filter(request, replicas, cached)
        if self._has_targets:
            kept = self._tier(request, replicas, cached, kept)
            if not kept:
                return REJECT
        totals = self._scores(request, [replicas[i] for i in kept], cached)
        choice = kept[self._pick(totals)]
        chosen = replicas[choice].index
        self.prefixes.sent(request, chosen)
        self._cold.sent(chosen, cached)
        if request.session_id >= 0:
            self._homes.setdefault(request.session_id, chosen)
        self.predicted_tokens = cached[chosen]
        return choice

    def on_leave(self, replica: int) -> None:
        self.prefixes.forget(replica)
        self._cold.forget(replica)
        self._homes = {k: home for k, home in self._homes.items() if home != replica}

    def _filter(
        self, request: IncomingRequest, replicas: Sequence[ReplicaView], cached: Sequence[int]
    ) -> list[int]:
        """Return the indices of the replicas that pass the filter."""
        everyone = list(range(len(replicas)))
        self.branch = "scores"
        if not self._affinity:
            return everyone
        rates = self.prefixes.block_rates(request, cached)
        warm = sticky([rates[replica.index] for replica in replicas], self._affinity)
        if len(warm) == len(everyone):
            return everyone
        if random_share(self.placement.draws) < self._explore:
            self.branch = "explored"
            return everyone
        own = request.num_prompt_tokens
        loads = [r.local.num_uncached_tokens + own - cached[r.index] for r in replicas]
        if lead(loads, warm) > self._penalty * self.facts.prefill_rate:
            self.branch = "released"
            return everyone
        self.branch = "sticky"
        return warm

    def _tier(
        self,
        request: IncomingRequest,
        replicas: Sequence[ReplicaView],
        cached: Sequence[int],
        kept: list[int],
    ) -> list[int]:
        """Return the indices of the candidates by the latency targets; empty to reject."""
        headrooms = self._headrooms(request, replicas, cached)
        if request.priority > 0 and can_be_shed(headrooms, replicas):
            self.branch, self.predicted_tokens = "turned away", None
            return []
        good = meeting([headrooms[place] for place in kept])
        if not good or len(good) == len(kept):
            self.branch = "on time" if good else "late"
            return kept
        is_late = random_share(self.placement.draws) < self._explore_late
        self.branch = "late" if is_late else "on time"
        return [place for k, place in enumerate(kept) if (k in good) is not is_late]

    def _headrooms(
        self, request: IncomingRequest, replicas: Sequence[ReplicaView], cached: Sequence[int]
    ) -> list[Headroom]:
        """Return the predicted headroom to the targets at some replicas."""
        facts, (ttft_slo, tpot_slo) = self.facts, self._targets
        predicted = [forecast(facts, request, one, cached[one.index]) for one in replicas]
        if not self._has_targets:
            return [Headroom(-one.ttft, -one.tpot) for one in predicted]
        return [
            Headroom(
                0.0 if ttft_slo is None else ttft_slo - one.ttft,
                0.0 if tpot_slo is None else tpot_slo - one.tpot,
            )
            for one in predicted
        ]

    def _latencies(
        self, request: IncomingRequest, replicas: Sequence[ReplicaView], cached: Sequence[int]
    ) -> list[float]:
        if not self._latency:
            return [0.0] * len(replicas)
        headrooms = self._headrooms(request, replicas, cached)
        return latency_scores(headrooms, queues(replicas), self._latency_weights, most=self._most)

    def _scores(
        self, request: IncomingRequest, replicas: Sequence[ReplicaView], cached: Sequence[int]
    ) -> list[float]:
        """Return the weighted sum of the scores of each candidate."""
        self.describe(request, cached)
        self.see(replicas, cached)
        score(self.state, self.placement)
        totals = [-cost for cost in self.placement.costs[: len(replicas)]]
        home = self._homes.get(request.session_id, -1)
        # These scores need more than the counters of a candidate.
        weighted: list[tuple[float, list[float]]] = [
            (self._session, [float(replica.index == home) for replica in replicas]),
            (self._no_hit_lru, self._cold.score(cached, [r.index for r in replicas])),
            (self._latency, self._latencies(request, replicas, cached)),
        ]
        for weight, scores in weighted:
            if weight:
                totals = [total + weight * one for total, one in zip(totals, scores, strict=True)]
        return totals

    def _pick(self, totals: Sequence[float]) -> int:
        draws, number = self.placement.draws, len(totals)
        draw_words(draws, self.facts.rng, fewest=FEWEST_WORDS + number)
        if self._picker == "random":
            return random_below(draws, number)
        if self._picker == "weighted-random":
            # Reservoir sampling: the largest U^(1/weight) wins; a total of 0 never wins.
            drawn = [random_share(draws) for _ in totals]
            totals = [u ** (1 / t) if t > 0 else -1.0 for u, t in zip(drawn, totals, strict=True)]
        return any_least_cost([-total for total in totals], number, draws)
