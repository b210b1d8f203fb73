"""NVIDIA Dynamo's KV router."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.fleet.parameters import Delay, Seconds, Share, Weight, refuse_unread
from kvsim.fleet.routing.choice import queues, uniform_argmin
from kvsim.fleet.routing.path_set import PathSet
from kvsim.fleet.routing.prefix_affinity import Kind, PrefixAffinity
from kvsim.fleet.routing.router import ROUTERS
from kvsim.fleet.routing.rule_router import RuleRouter
from kvsim.records.routing import CostWeights
from kvsim.rules.routing.dynamo import choose_dynamo, dynamo_cost, dynamo_decode_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.records.memory import Memory


#: Defaults, seconds: from a step's end until the index is updated; time for which a prompt counts
#: as cached without events.
EVENT_DELAY, TTL = 0.005, 120.0


def softmax_weights(costs: Sequence[float], temperature: float) -> list[float]:
    """Return the probability of each cost: ``softmax(-(cost - min) / ((max - min) * T))``."""
    from math import exp

    low, high = min(costs), max(costs)
    if high == low:
        return [1 / len(costs)] * len(costs)
    weights = [exp(-(cost - low) / ((high - low) * temperature)) for cost in costs]
    total = sum(weights)
    return [weight / total for weight in weights]


class Sent(NamedTuple):
    """A router's prediction for a request that it sent.

    Attributes
    ----------
    path : keys of the prompt's full blocks, as bytes
    has_rest : the prompt ends inside a block
    num_uncached_tokens : prompt tokens to prefill
    """

    path: bytes
    has_rest: bool
    num_uncached_tokens: int


@ROUTERS.register("dynamo")
class Dynamo(RuleRouter):
    """NVIDIA Dynamo: the fewest blocks to prefill and to decode, with credit for cached ones.

    The cost of a worker, in blocks, is ``prefill-weight * max(0, raw - credit) + decode +
    active-weight * requests``. ``raw`` is this whole prompt plus the uncached prompt tokens in
    flight at the worker. ``credit`` is the cached blocks of this prompt, reduced (``decay``) if
    more tokens are in flight than at the least loaded worker, plus a share of the blocks after them
    in the worker's host memory and disks (``--kv-store kvbm``). ``decode`` is the number of
    different blocks of the worker's prompts. In a decode pool the cost is ``max(0, decode - credit)
    + active-weight * requests``.

    The router predicts the work in flight: it adds a request's work when it sends the request,
    removes its prefill tokens at the first token, and removes its blocks at the end. The smallest
    cost wins, and ties are broken at random; with a temperature, the worker is sampled.

    Source: ai-dynamo/dynamo, lib/kv-router at 07a6c9c and 0243c51, docs/architecture at 01118c5.
    The documented cost ``w * prefill + decode`` is this cost with ``prefill-weight`` w. Dynamo's
    queue before the router is ``--flow-control dynamo``.

    Parameters
    ----------
    events : the replicas' events report cached blocks; without events, prompts count as cached for
        ``ttl`` seconds after they are sent
    credit : credit of a cached block; 0 balances only load
    host_credit, disk_credit : credit of a block in host memory or on disk, 0.75 and 0.25
    prefill_weight, active_weight, decay : terms of the formula
    temperature : temperature of the softmax over costs; 0 chooses the smallest cost
    event_delay : seconds from a step's end until the index is updated, 0.005
    ttl : seconds for which a sent prompt counts as cached without events, 120
    """

    watches_requests = True
    follows_prompts = True
    takes_changes = True
    rule = staticmethod(choose_dynamo)
    prefixes: PrefixAffinity

    def __init__(
        self,
        *,
        events: bool = True,
        credit: Share = 1.0,
        host_credit: Share = 0.75,
        disk_credit: Share = 0.25,
        prefill_weight: Weight = 1.0,
        active_weight: Weight = 0.0,
        decay: Weight = 0.0,
        temperature: Weight = 0.0,
        event_delay: Delay | None = None,
        ttl: Seconds | None = None,
    ) -> None:
        if events:
            refuse_unread("with events=true", ttl=ttl)
        else:
            refuse_unread("with events=false", event_delay=event_delay)
        #: Credit, weight of prefill and of active requests, and decay.
        self.weights = float(credit), float(prefill_weight), float(active_weight), float(decay)
        self._active_weight = active_weight
        self._credits = {"host": float(host_credit), "disk": float(disk_credit)}
        self._temperature = temperature
        self._ttl = TTL if ttl is None else ttl
        self._events = events
        delay = EVENT_DELAY if event_delay is None else event_delay
        self.event_delay = delay if events else None

    @property
    def is_plain(self) -> bool:
        """Return True if the router picks the smallest cost, and reads the replicas' events."""
        return self._events and not self._temperature and not self.facts.decodes_only

    def make_state(self, memory: Memory) -> CostWeights:
        state = memory.one(CostWeights)
        state.credit, state.prefill, state.active, state.decay = self.weights
        return state

    def start(self, facts: Facts) -> None:
        super().start(facts)
        kind: Kind = "precise" if self._events else "approximate"
        size = facts.entry_tokens
        self.prefixes = PrefixAffinity(facts, kind, entry_tokens=size, ttl=self._ttl)
        self._blocks = [PathSet() for _ in range(facts.num_replicas)]
        self._sent: dict[int, Sent] = {}
        # Per replica: prompt tokens in flight without a first token, and blocks that decode.
        self._num_prefilling = np.zeros(facts.num_replicas)
        self._num_blocks = np.zeros(facts.num_replicas)

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        # The rule over arrays: with dozens of replicas a loop would take most of a decision's time.
        cached = self.prefixes.cached_array(request)
        prefilling, decode = self._num_prefilling, self._num_blocks
        size, prompt = self.prefixes.entry_tokens, request.num_prompt_tokens
        if len(replicas) < len(cached):
            places = [replica.index for replica in replicas]
            cached, prefilling, decode = cached[places], prefilling[places], decode[places]
        active = np.array(queues(replicas)) if self._active_weight else 0
        if self.facts.decodes_only:
            credit, _, weight, _ = self.weights
            costs = dynamo_decode_cost(decode, active, cached, size, credit, weight)
        else:
            costs = dynamo_cost(
                *(prefilling, decode, active, cached, prefilling.min(), prompt, size),
                *self.weights,
                self._beyond(request, cached, [replica.index for replica in replicas]),
            )
        choice = self._pick(costs)
        self._note(request, replicas[choice].index, int(cached[choice]))
        return choice

    def _beyond(
        self, request: IncomingRequest, cached: NDArray[np.int64], places: Sequence[int]
    ) -> NDArray[np.float64] | float:
        """Return the credit of each replica's tiers for blocks beyond its cache, in tokens."""
        tiers = self.facts.own_tiers(request) if self.facts.own_tiers else ()
        if not any(tiers):
            return 0.0
        size, worth = self.prefixes.entry_tokens, np.zeros(len(places))
        for k, place in enumerate(places):
            begin = 0
            for portion in tiers[place]:
                end = begin + portion.num_entries * size
                worth[k] += self._credits.get(portion.tier, 0.0) * max(
                    end - max(begin, cached[k]), 0
                )
                begin = end
        return worth

    def _pick(self, costs: NDArray[np.float64]) -> int:
        rng = self.facts.rng
        if not self._temperature:
            return uniform_argmin(costs, rng)
        weights = softmax_weights(costs.tolist(), self._temperature)
        return int(rng.choice(len(costs), p=weights))

    def _note(self, request: IncomingRequest, choice: int, cached: int) -> None:
        """Add the blocks and the uncached prompt tokens of a request to the load of a worker."""
        prompt, size = request.num_prompt_tokens, self.prefixes.entry_tokens
        path = request.prefix_path(size).tobytes()
        # The block in which a prompt ends is not shared.
        sent = Sent(path, prompt % size > 0, prompt - min(cached, prompt))
        self._sent[request.request_id] = sent
        self._num_prefilling[choice] += sent.num_uncached_tokens
        self._num_blocks[choice] += self._blocks[choice].add(path) + sent.has_rest
        self.prefixes.sent(request, choice)
        self.predicted_tokens = cached

    def on_leave(self, replica: int) -> None:
        self.prefixes.forget(replica)
        self._blocks[replica].clear()
        self._num_blocks[replica] = self._num_prefilling[replica] = 0

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        del time
        self._num_prefilling[replica] -= self._sent[request_id].num_uncached_tokens

    def on_finish(self, request_id: int, replica: int, time: float, num_tokens: int) -> None:
        del time, num_tokens
        sent = self._sent.pop(request_id)
        self._num_blocks[replica] -= self._blocks[replica].remove(sent.path) + sent.has_rest
