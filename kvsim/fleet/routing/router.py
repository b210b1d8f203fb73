"""Which replica serves a request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from kvsim.fleet.parameters import number_of_replicas
from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView

#: What a router answers if nobody shall serve a request.
REJECT = -1


class Router(ABC):
    """Chooses a replica for each request, in order of arrival.

    It says by attributes what it looks at, and sees nothing else; each can be set by a class or in
    ``__init__``. :func:`kvsim.testing.check_router` tells whether one does what it says.

    Attributes
    ----------
    looks_at_replicas : a choice depends on the replicas' state; if not, the choices are made
        before the run, and the replicas need not wait for each other. The next four imply it
    needs_prefix_cache : it calls ``num_cached_tokens`` of a replica, which no real router can;
        where prefix caching is off, the answer is 0
    watches_requests : it reads ``local`` of the replicas, or is told of first tokens and ends
    scrape_interval : seconds between two looks at the replicas' metrics, which it reads as
        ``scraped``; None if it does not
    event_delay : seconds until what replicas tell of their prefix caches is in ``facts.index``;
        None if it does not ask
    takes_changes : replicas may come and go: it reads what it keeps of a replica by the view's
        ``index``, and forgets it when told
    branch : which rule made the last choice, for the share of decisions by branch
    predicted_tokens : how many tokens of the last request's prompt it takes for cached where it
        sent it; None if it has no idea
    """

    looks_at_replicas: bool = False
    needs_prefix_cache: bool = False
    watches_requests: bool = False
    scrape_interval: float | None = None
    event_delay: float | None = None
    takes_changes: bool = False
    branch: str = ""
    predicted_tokens: int | None = None
    facts: Facts

    @property
    def looks(self) -> bool:
        """Whether choices depend on the replicas in any way."""
        asks = self.scrape_interval is not None or self.event_delay is not None
        return self.looks_at_replicas or self.needs_prefix_cache or self.watches_requests or asks

    def start(self, facts: Facts) -> None:
        """Learn what the fleet is like, before the first request. Mutates."""
        self.facts = facts

    @abstractmethod
    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        """Choose who serves a request. Mutates only the router.

        Parameters
        ----------
        request : the request, read-only
        replicas : all replicas as this gateway sees them now; read ``num_outstanding()``,
            ``local``, ``scraped`` and ``num_cached_tokens(request)``

        Returns
        -------
        int
            The place of the replica in ``replicas``, or REJECT. Where replicas come and go, only
            those that take requests are in it.
        """

    def on_first_token(  # noqa: B027 - not every router wants to know
        self, request_id: int, replica: int, time: float
    ) -> None:
        """Learn that a request of this gateway has its first token. Mutates."""

    def on_finish(  # noqa: B027
        self, request_id: int, replica: int, time: float, num_tokens: int
    ) -> None:
        """Learn that a request of this gateway has ended after so many output tokens. Mutates."""

    def on_leave(self, replica: int) -> None:  # noqa: B027
        """Learn that a replica is gone, and what it held; its index may come again. Mutates."""


#: Factories take keyword parameters only.
ROUTERS: Registry[Router] = Registry("router", "kvsim.fleet.routers", Router, "kvsim.routers")


def make_router(text: str) -> Router:
    """Make the router ``NAME[+KEY=VALUE]...`` of the first gateway; see :func:`make_routers`.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    return make_routers(text)[0]


def make_routers(text: str) -> list[Router]:
    """Make the routers of ``NAME[+gateways=N][+KEY=VALUE]...``, one per gateway.

    Gateways take the requests in turn. Each knows what it sent itself, and of the others only what
    the replicas' metrics and events tell.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    gateways = params.pop("gateways", "1") or ""
    number = number_of_replicas(f"router {name!r}: gateways={gateways}", gateways)
    return [ROUTERS.create(name, **params) for _ in range(number)]
