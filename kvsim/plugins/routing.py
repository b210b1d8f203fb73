"""Names for authors of routers: the base class, what a router sees, a check."""

from kvsim.engine.incoming import IncomingRequest
from kvsim.fleet.facts import Facts
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.routing.router import REJECT, ROUTERS, Router
from kvsim.fleet.routing.view import Local, ReplicaView, Scraped
from kvsim.testing.router import check_router

__all__ = [
    "REJECT",
    "ROUTERS",
    "Facts",
    "IncomingRequest",
    "Local",
    "PrefixIndex",
    "ReplicaView",
    "Router",
    "Scraped",
    "check_router",
]
