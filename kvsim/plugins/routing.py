"""Names for authors of routers: the base classes, a router's inputs, a check."""

from kvsim.engine.incoming import IncomingRequest
from kvsim.fleet.facts import Facts
from kvsim.fleet.prefix_index.index import PrefixIndex
from kvsim.fleet.routing.router import REJECT, ROUTERS, Router
from kvsim.fleet.routing.router_rules import RouterRules
from kvsim.fleet.routing.view import Local, ReplicaView, Scraped
from kvsim.own_rules.part import per_replica
from kvsim.records.routing import Candidate, Placement
from kvsim.rules.routing.draws import random_below
from kvsim.rules.routing.pick import least_loaded, longest_match
from kvsim.testing.router import check_router

__all__ = [
    "REJECT",
    "ROUTERS",
    "Candidate",
    "Facts",
    "IncomingRequest",
    "Local",
    "Placement",
    "PrefixIndex",
    "ReplicaView",
    "Router",
    "RouterRules",
    "Scraped",
    "check_router",
    "least_loaded",
    "longest_match",
    "per_replica",
    "random_below",
]
