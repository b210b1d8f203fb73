"""Names for authors of eviction policies: base classes, declarations, a linked list, a check."""

from kvsim.kv.eviction import EVICTION_POLICIES, EvictionPolicy
from kvsim.kv.eviction_rules import EvictionRules
from kvsim.own_rules.part import per_block, per_replica, per_request
from kvsim.records.queue import Neighbours as Links
from kvsim.records.queue import Queue
from kvsim.records.record import NONE
from kvsim.rules.links import append, push_front, remove
from kvsim.testing.eviction import check_eviction

__all__ = [
    "EVICTION_POLICIES",
    "NONE",
    "EvictionPolicy",
    "EvictionRules",
    "Links",
    "Queue",
    "append",
    "check_eviction",
    "per_block",
    "per_replica",
    "per_request",
    "push_front",
    "remove",
]
