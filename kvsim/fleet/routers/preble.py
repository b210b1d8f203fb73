"""Preble's E2: exploit a cached prefix, or explore."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from kvsim.fleet.parameters import (  # noqa: TC001 - checked when a run is configured
    Count,
    Seconds,
    Weight,
    Whole,
)
from kvsim.fleet.routing.choice import argmin, queues
from kvsim.fleet.routing.prefix_affinity import PrefixAffinity
from kvsim.fleet.routing.prefix_load import PrefixLoad
from kvsim.fleet.routing.router import ROUTERS, Router

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView

#: Seconds per output token of a replica on which no request has ended.
FIRST_TPOT = 0.15
#: Number of last ended requests per replica from which medians are computed.
MOST_REMEMBERED = 256


@ROUTERS.register("preble")
class Preble(Router):
    """Preble's E2: the longest match if more of the prompt is cached than not, else any replica.

    If fewer tokens are missing than cached (exploit), the replicas with the longest match are
    candidates; else (explore) all. The smallest ``L + M`` wins, the first on a tie. L is the
    prefill time of the entries missed in the last ``window`` seconds (the time of an entry is
    divided among its holders), plus ``active requests * median output * median TPOT`` of the
    replica. M is the prefill time of the entries that an LRU cache of the replica's size would
    evict. After ``warm-up`` requests per replica, loads are balanced: while the largest L is above
    ``balance`` times the smallest L, requests for the replica with the largest go to the replica
    with the smallest.

    Source: Preble, arXiv 2407.00023, and global_scheduler_with_time.py of WukLab/preble at
    8e7906ae. Preble balances by moving, splitting or replicating the busiest subtree of prefixes;
    here single requests move, and their new replica then caches their prefix.

    Parameters
    ----------
    window : seconds of misses that L counts
    balance : ratio of the largest to the smallest L above which requests move
    warm_up : requests per replica before requests move
    own_prefill : add this request's own prefill time to L and M, as the paper does
    entry_tokens : tokens per entry
    """

    watches_requests = True

    def __init__(
        self,
        *,
        window: Seconds = 180.0,
        balance: Weight = 1.5,
        warm_up: Whole = 50,
        own_prefill: bool = False,
        entry_tokens: Count = 64,
    ) -> None:
        self._window = window
        self._balance = balance
        self._warm_up = warm_up
        self._own_prefill = own_prefill
        self._entry_tokens = entry_tokens

    def start(self, facts: Facts) -> None:
        super().start(facts)
        size, number = self._entry_tokens, facts.num_replicas
        self._capacity = max(facts.num_kv_tokens // size, 1)
        self._prefix_affinity = PrefixAffinity(
            facts, entry_tokens=size, max_entries=self._capacity, asks_holders=True
        )
        self._piece_time = size / facts.prefill_rate
        self._prefixes = PrefixLoad(
            self._prefix_affinity.index, number, self._piece_time, self._window
        )
        self._num_seen = 0
        self._first_tokens: dict[int, float] = {}
        empty = [deque[float](maxlen=MOST_REMEMBERED) for _ in range(2 * number)]
        self._outputs, self._tpots = empty[:number], empty[number:]
        self._output, self._tpot = [0.0] * number, [FIRST_TPOT] * number  # medians

    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        now, prompt = request.arrival_time, request.num_prompt_tokens
        cached, keys = (
            self._prefix_affinity.cached_tokens(request),
            self._prefix_affinity.keys(request),
        )
        self._prefixes.forget(now)
        loads = self._loads(queues(replicas))
        best = max(cached)
        among = None
        self.branch = "explore"
        if prompt - best < best:
            self.branch = "exploit"
            among = [i for i, tokens in enumerate(cached) if tokens == best]
        costs, most = list(loads), self._capacity - len(keys)
        for i, size in enumerate(map(self._prefix_affinity.index.size, range(len(costs)))):
            if size > most:
                costs[i] += self._dropped(i, len(keys), cached[i])
        if self._own_prefill:
            time = self.facts.prefill_time
            costs = [cost + time(prompt, cached[i]) for i, cost in enumerate(costs)]
        choice = self._balanced(argmin(costs, among), loads)
        self._num_seen += 1
        self._prefix_affinity.sent(request, choice)
        self._prefixes.note(now, keys, cached[choice] // self._entry_tokens)
        self.predicted_tokens = cached[choice]
        return choice

    def _loads(self, active: Sequence[int]) -> list[float]:
        """Return L of each replica, seconds; see :class:`Preble`."""
        parts = zip(self._prefixes.seconds(), active, self._output, self._tpot, strict=True)
        return [load + number * output * tpot for load, number, output, tpot in parts]

    def _dropped(self, replica: int, num_entries: int, cached_tokens: int) -> float:
        """Return M of a replica, seconds; see :class:`Preble`."""
        new = num_entries - cached_tokens // self._entry_tokens
        too_many = self._prefix_affinity.index.size(replica) + new - self._capacity
        return max(too_many, 0) * self._piece_time

    def _balanced(self, choice: int, loads: Sequence[float]) -> int:
        """Return the choice or, if it is the most loaded by far, the least loaded replica."""
        if self._num_seen < self._warm_up * len(loads):
            return choice
        most = max(loads)
        if loads[choice] < most or most <= self._balance * min(loads):
            return choice
        self.branch = "balanced"
        return argmin(loads)

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        del replica
        self._first_tokens[request_id] = time

    def on_finish(self, request_id: int, replica: int, time: float, num_tokens: int) -> None:
        first = self._first_tokens.pop(request_id, time)
        self._outputs[replica].append(num_tokens)
        self._output[replica] = median(self._outputs[replica])
        if num_tokens > 1:
            self._tpots[replica].append((time - first) / (num_tokens - 1))
            self._tpot[replica] = median(self._tpots[replica])
