"""Names for authors of allocators: base classes, declarations, a linked list, a check."""

from kvsim.kv.allocator_rules import AllocatorRules
from kvsim.kv.contiguous import ContiguousManager
from kvsim.kv.manager import ALLOCATORS, NO_HIT, Hit, KVCacheConfig, KVCacheManager
from kvsim.kv.paged import PagedManager
from kvsim.own_rules.part import per_block, per_replica, per_request
from kvsim.records.queue import Neighbours as Links
from kvsim.records.queue import Queue
from kvsim.records.record import NONE
from kvsim.records.request import Request
from kvsim.rules.links import append, push_front, remove
from kvsim.testing.allocator import check_allocator

__all__ = [
    "ALLOCATORS",
    "NONE",
    "NO_HIT",
    "AllocatorRules",
    "ContiguousManager",
    "Hit",
    "KVCacheConfig",
    "KVCacheManager",
    "Links",
    "PagedManager",
    "Queue",
    "Request",
    "append",
    "check_allocator",
    "per_block",
    "per_replica",
    "per_request",
    "push_front",
    "remove",
]
