"""The interface of routers, which choose a replica for each request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from kvsim.fleet.parameters import number_of_replicas
from kvsim.fleet.routing.router_rules import RouterRules
from kvsim.parametric import Parametric
from kvsim.registry import Registry, parse_spec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.routing.view import ReplicaView

#: The choice of a router that rejects a request.
REJECT = -1


class Router(Parametric, ABC):
    """Chooses a replica for each request, in order of arrival.

    The attributes declare the inputs that a router reads; it receives no others. They are set in
    the class or in ``__init__``. :func:`kvsim.testing.check_router` checks a router against them.

    Attributes
    ----------
    looks_at_replicas : choices depend on the replicas' state; if not, all choices are made before
        the run, and the replicas run independently. Each of the next four implies it
    needs_prefix_cache : the router calls a replica's ``num_cached_tokens``, which no real router
        can; without prefix caching it returns 0
    watches_requests : the router reads ``local`` of the replicas, or handles first tokens and ends
    scrape_interval : seconds between two scrapes of the replicas' metrics, which the router reads
        as ``scraped``; None if it reads none
    event_delay : seconds until the events of the replicas' prefix caches are in ``facts.index``;
        None if the router reads no events
    takes_changes : replicas may start and stop: the router stores data of a replica by the view's
        ``index``, and drops them in ``on_leave``
    branch : name of the rule that made the last choice, for the share of decisions by branch
    predicted_tokens : prompt tokens of the last request that the router predicts to be cached at
        the chosen replica; None if unknown
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
        """Return True if choices depend on the replicas in any way."""
        asks = self.scrape_interval is not None or self.event_delay is not None
        return self.looks_at_replicas or self.needs_prefix_cache or self.watches_requests or asks

    def start(self, facts: Facts) -> None:
        """Receive the properties of the fleet, before the first request. Mutates."""
        self.facts = facts

    @abstractmethod
    def choose(self, request: IncomingRequest, replicas: Sequence[ReplicaView]) -> int:
        """Return the replica that serves a request. Mutates only the router.

        Parameters
        ----------
        request : the request, read-only
        replicas : all replicas as this gateway sees them now; read ``num_outstanding()``,
            ``local``, ``scraped`` and ``num_cached_tokens(request)``

        Returns
        -------
        int
            The index of the replica in ``replicas``, or REJECT. If replicas start and stop, this
            list has only the replicas that accept requests.
        """

    def on_first_token(self, request_id: int, replica: int, time: float) -> None:
        """Handle the first token of a request of this gateway. Mutates."""

    def on_finish(self, request_id: int, replica: int, time: float, num_tokens: int) -> None:
        """Handle the end of a request of this gateway after ``num_tokens`` outputs. Mutates."""

    def on_leave(self, replica: int) -> None:
        """Handle the loss of a replica and of its cache; its index may be used again. Mutates."""


#: Factories take keyword parameters only.
ROUTERS: Registry[Router] = Registry("router", "kvsim.fleet.routers", Router, "kvsim.routers")

Router.register(RouterRules)  # OwnRouter makes one of it


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

    Gateways route the requests in turn. A gateway knows its own requests; it knows those of other
    gateways only through the replicas' metrics and events.

    Raises
    ------
    ValueError
        For an unknown name, an unknown parameter, or a value of the wrong type.
    """
    name, params = parse_spec(text)
    gateways = params.pop("gateways", "1") or ""
    number = number_of_replicas(f"router {name!r}: gateways={gateways}", gateways)
    return [_created(name, params) for _ in range(number)]


def _created(name: str, params: dict[str, str | None]) -> Router:
    made: Any = ROUTERS.create(name, **params)
    if not isinstance(made, RouterRules):
        return made  # type: ignore[no-any-return]
    from kvsim.fleet.routers.own_rules import OwnRouter

    return OwnRouter(made)
