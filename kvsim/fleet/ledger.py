"""What gateways sent and what became of it: exact, without delay."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.results.tables import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.replica import Replica
    from kvsim.fleet.router import Router
    from kvsim.fleet.view import ReplicaView


class Sent(NamedTuple):
    """A request on a replica, by which gateway, and what its router took for not cached."""

    gateway: int
    num_prompt_tokens: int
    num_uncached_tokens: int


class Ledger:
    """Follows every request from its dispatch to its first token and its end.

    Parameters
    ----------
    replicas : who serves
    table : the run's requests table, where ended requests have their row
    routers : of the gateways, who are told
    views : of each gateway, whose counters are kept
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        table: NDArray[Any],
        routers: Sequence[Router],
        views: Sequence[Sequence[ReplicaView]],
    ) -> None:
        self._replicas = list(replicas)
        self._table = table
        self._routers = routers
        self._views = views
        self._alive: list[dict[int, Sent]] = [{} for _ in replicas]
        self._prefilling: list[dict[int, None]] = [{} for _ in replicas]
        self._lost: set[int] = set()
        self._seen = [-math.inf for _ in replicas]  # clock at the last look

    def replace(self, place: int, replica: Replica) -> None:
        """Follow another replica; what the one before had in hand is nobody's now. Mutates."""
        self._replicas[place] = replica
        self._alive[place], self._prefilling[place] = {}, {}
        self._seen[place] = -math.inf
        self._lost.discard(place)

    def lose(self, place: int) -> None:
        """Hear nothing of a replica any more. Mutates."""
        self._lost.add(place)

    def send(
        self, gateway: int, place: int, request: IncomingRequest, num_uncached_tokens: int
    ) -> None:
        """Note that a gateway sends a request. Mutates."""
        sent = Sent(gateway, request.num_prompt_tokens, num_uncached_tokens)
        self._alive[place][request.request_id] = sent
        self._prefilling[place][request.request_id] = None
        local = self._views[gateway][place].local
        local.num_requests += 1
        local.num_prefilling += 1
        local.num_prompt_tokens += sent.num_prompt_tokens
        local.num_uncached_tokens += num_uncached_tokens

    def update(self) -> None:
        """Take in what has happened, and tell the routers, in order of time. Mutates."""
        news: list[tuple[float, int, int, int]] = []
        for place, replica in enumerate(self._replicas):
            if place in self._lost:
                continue
            if self._alive[place] and replica.clock != self._seen[place]:
                self._seen[place] = replica.clock
                self._look(place, replica, news)
        for time, is_end, request_id, place in sorted(news):
            if is_end:
                self._end(place, request_id, time)
            else:
                self._start(place, request_id, time)

    def _look(self, place: int, replica: Replica, news: list[tuple[float, int, int, int]]) -> None:
        alive, prefilling, table = self._alive[place], self._prefilling[place], self._table
        if replica.num_outstanding() < len(alive):
            for request_id in alive:
                row = table[request_id]
                if row["finish_reason"] != FinishReason.IN_FLIGHT:
                    if request_id in prefilling:
                        news.append((float(row["first_token_time"]), 0, request_id, place))
                    news.append((float(row["finish_time"]), 1, request_id, place))
        if prefilling:
            started = replica.first_tokens()
            news += [(started[i], 0, i, place) for i in prefilling if i in started]

    def _start(self, place: int, request_id: int, time: float) -> None:
        """Take in a first token."""
        if request_id not in self._prefilling[place]:
            return
        del self._prefilling[place][request_id]
        sent = self._alive[place][request_id]
        local = self._views[sent.gateway][place].local
        local.num_prefilling -= 1
        local.num_uncached_tokens -= sent.num_uncached_tokens
        self._routers[sent.gateway].on_first_token(request_id, place, time)

    def _end(self, place: int, request_id: int, time: float) -> None:
        """Take in an end."""
        sent = self._alive[place].pop(request_id)
        local = self._views[sent.gateway][place].local
        local.num_requests -= 1
        local.num_prompt_tokens -= sent.num_prompt_tokens
        num_tokens = int(self._table["num_output_tokens"][request_id])
        self._routers[sent.gateway].on_finish(request_id, place, time, num_tokens)
