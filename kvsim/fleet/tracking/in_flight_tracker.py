"""Requests in flight of all gateways: exact, without delay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.engine.replica import Replica
    from kvsim.fleet.routing.router import Router
    from kvsim.fleet.routing.view import ReplicaView
    from kvsim.fleet.tracking.lifecycle_events import LifecycleEvents


class Sent(NamedTuple):
    """A request sent to a replica.

    Attributes
    ----------
    gateway, place : index of its gateway, and slot of the replica
    num_prompt_tokens : prompt tokens
    num_uncached_tokens : prompt tokens that its router predicted as uncached
    """

    gateway: int
    place: int
    num_prompt_tokens: int
    num_uncached_tokens: int


class InFlightTracker:
    """Follows every request from its dispatch to its first token and its end.

    Parameters
    ----------
    lifecycle_events : events of the replicas that serve
    table : the run's requests table, with the outputs of ended requests
    routers : router of each gateway, which is notified of first tokens and ends
    views : views of each gateway; the tracker updates their counters
    """

    def __init__(
        self,
        lifecycle_events: LifecycleEvents,
        table: NDArray[Any],
        routers: Sequence[Router],
        views: Sequence[Sequence[ReplicaView]],
    ) -> None:
        self._lifecycle_events = lifecycle_events
        self._table = table
        self._routers = routers
        self._views = views
        self._sent: dict[int, Sent] = {}
        self._moved: dict[int, int] = {}  # slot to which a request moved, unknown to routers

    @property
    def lifecycle_events(self) -> LifecycleEvents:
        """The source of first tokens and ends."""
        return self._lifecycle_events

    def replace(self, place: int, replica: Replica) -> None:
        """Follow a new replica in a slot, and drop the previous one's requests. Mutates."""
        for row in [row for row, sent in self._sent.items() if sent.place == place]:
            del self._sent[row]
            if row in self._moved:
                self._lifecycle_events.withdraw(row, self._moved.pop(row))
        self._lifecycle_events.replace(place, replica)

    def lose(self, place: int) -> None:
        """Stop reading a replica. Mutates."""
        self._lifecycle_events.lose(place)

    def send(
        self, gateway: int, place: int, request: IncomingRequest, num_uncached_tokens: int
    ) -> None:
        sent = Sent(gateway, place, request.num_prompt_tokens, num_uncached_tokens)
        self._sent[request.request_id] = sent
        self._lifecycle_events.send(request.request_id, place)
        local = self._views[gateway][place].local
        local.num_requests += 1
        local.num_prefilling += 1
        local.num_prompt_tokens += sent.num_prompt_tokens
        local.num_uncached_tokens += num_uncached_tokens

    def withdraw(self, request_id: int, time: float) -> None:
        """Handle a request that is withdrawn from its replica, which continues. Mutates."""
        self.update()
        if self._lifecycle_events.withdraw(request_id, self._sent[request_id].place):
            self._start(request_id, time)
        self._end(request_id, time)

    def follow(self, request_id: int, place: int) -> None:
        """Handle a request that moves to another slot; its router is not notified. Mutates."""
        self.update()
        if request_id in self._sent:
            before = self._moved.get(request_id, self._sent[request_id].place)
            self._lifecycle_events.move(request_id, before, place)
            self._moved[request_id] = place

    def update(self) -> None:
        """Process new events in order of time, and notify the routers. Mutates."""
        for time, is_end, request_id, _ in sorted(self._lifecycle_events.collect()):
            if is_end:
                self._end(request_id, time)
            else:
                self._start(request_id, time)

    def _start(self, request_id: int, time: float) -> None:
        """Process a first token."""
        sent = self._sent[request_id]
        local = self._views[sent.gateway][sent.place].local
        local.num_prefilling -= 1
        local.num_uncached_tokens -= sent.num_uncached_tokens
        self._routers[sent.gateway].on_first_token(request_id, sent.place, time)

    def _end(self, request_id: int, time: float) -> None:
        """Process the end of a request."""
        sent = self._sent.pop(request_id)
        self._moved.pop(request_id, None)
        local = self._views[sent.gateway][sent.place].local
        local.num_requests -= 1
        local.num_prompt_tokens -= sent.num_prompt_tokens
        num_tokens = int(self._table["num_output_tokens"][request_id])
        self._routers[sent.gateway].on_finish(request_id, sent.place, time, num_tokens)
