"""Public interface for authors of parts, such as routers: base classes, registries, checks.

These names are stable; the modules that define them may be renamed. Each name is imported at its
first use, so that a router does not import the allocators. Workloads register in
``workloads.WORKLOADS``.

A part is named by its path, ``my_module:Class``. An installed package gives it a name by an entry
point in one of the groups ``kvsim.allocators``, ``kvsim.schedulers``, ``kvsim.eviction_policies``,
``kvsim.routers``, ``kvsim.autoscalers``, ``kvsim.disaggregations``, ``kvsim.flow_controls``,
``kvsim.migrations``, ``kvsim.stores``, ``kvsim.cost_models``, ``kvsim.workloads``.

>>> from kvsim.plugins import Router, check_router
>>> class First(Router):
...     '''Send everything to one replica.'''
...     def choose(self, request, replicas):
...         return 0
>>> check_router(First, num_runs=1)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.cost.model import COST_MODELS, CostConfig, CostModel, StepCost
    from kvsim.engine.backend import Backend
    from kvsim.engine.incoming import IncomingRequest
    from kvsim.fleet.admission.flow_control import FLOW_CONTROLS, FlowControl, Waiting
    from kvsim.fleet.disaggregation.placement_context import PlacementContext
    from kvsim.fleet.disaggregation.policy import DISAGGREGATIONS, Disaggregation
    from kvsim.fleet.facts import Facts
    from kvsim.fleet.kv_store.store import STORES, Portion, Store
    from kvsim.fleet.migration.policy import MIGRATIONS, Candidate, Fullness, Migration
    from kvsim.fleet.prefix_index.index import PrefixIndex
    from kvsim.fleet.routing.router import REJECT, ROUTERS, Router
    from kvsim.fleet.routing.view import Local, ReplicaView, Scraped
    from kvsim.fleet.scaling.autoscaler import AUTOSCALERS, Autoscaler, Load, PoolLoad
    from kvsim.kv.contiguous import ContiguousManager
    from kvsim.kv.eviction import EVICTION_POLICIES, EvictionPolicy
    from kvsim.kv.manager import (
        ALLOCATORS,
        NO_HIT,
        NO_TRANSFERS,
        Hit,
        KVCacheConfig,
        KVCacheManager,
        Transfers,
    )
    from kvsim.kv.paged import PagedManager
    from kvsim.kv.usage import Cause, KVUsage
    from kvsim.records.request import Request
    from kvsim.sched.scheduler import SCHEDULERS, Scheduler, SchedulerConfig, StepOutput, StepPlan
    from kvsim.testing.allocator import check_allocator
    from kvsim.testing.eviction import check_eviction
    from kvsim.testing.router import check_router

__all__ = [
    "ALLOCATORS",
    "AUTOSCALERS",
    "COST_MODELS",
    "DISAGGREGATIONS",
    "EVICTION_POLICIES",
    "FLOW_CONTROLS",
    "MIGRATIONS",
    "NO_HIT",
    "NO_TRANSFERS",
    "REJECT",
    "ROUTERS",
    "SCHEDULERS",
    "STORES",
    "Autoscaler",
    "Backend",
    "Candidate",
    "Cause",
    "ContiguousManager",
    "CostConfig",
    "CostModel",
    "Disaggregation",
    "EvictionPolicy",
    "Facts",
    "FlowControl",
    "Fullness",
    "Hit",
    "IncomingRequest",
    "KVCacheConfig",
    "KVCacheManager",
    "KVUsage",
    "Load",
    "Local",
    "Migration",
    "PagedManager",
    "PlacementContext",
    "PoolLoad",
    "Portion",
    "PrefixIndex",
    "ReplicaView",
    "Request",
    "Router",
    "Scheduler",
    "SchedulerConfig",
    "Scraped",
    "StepCost",
    "StepOutput",
    "StepPlan",
    "Store",
    "Transfers",
    "Waiting",
    "check_allocator",
    "check_eviction",
    "check_router",
]

#: Names by their current module.
_NAMES = {
    "kvsim.cost.model": ("COST_MODELS", "CostConfig", "CostModel", "StepCost"),
    "kvsim.engine.backend": ("Backend",),
    "kvsim.engine.incoming": ("IncomingRequest",),
    "kvsim.fleet.admission.flow_control": ("FLOW_CONTROLS", "FlowControl", "Waiting"),
    "kvsim.fleet.disaggregation.placement_context": ("PlacementContext",),
    "kvsim.fleet.disaggregation.policy": ("DISAGGREGATIONS", "Disaggregation"),
    "kvsim.fleet.facts": ("Facts",),
    "kvsim.fleet.kv_store.store": ("STORES", "Portion", "Store"),
    "kvsim.fleet.migration.policy": ("MIGRATIONS", "Candidate", "Fullness", "Migration"),
    "kvsim.fleet.prefix_index.index": ("PrefixIndex",),
    "kvsim.fleet.routing.router": ("REJECT", "ROUTERS", "Router"),
    "kvsim.fleet.routing.view": ("Local", "ReplicaView", "Scraped"),
    "kvsim.fleet.scaling.autoscaler": ("AUTOSCALERS", "Autoscaler", "Load", "PoolLoad"),
    "kvsim.kv.contiguous": ("ContiguousManager",),
    "kvsim.kv.eviction": ("EVICTION_POLICIES", "EvictionPolicy"),
    "kvsim.kv.manager": (
        "ALLOCATORS",
        "NO_HIT",
        "NO_TRANSFERS",
        "Hit",
        "KVCacheConfig",
        "KVCacheManager",
        "Transfers",
    ),
    "kvsim.kv.paged": ("PagedManager",),
    "kvsim.kv.usage": ("Cause", "KVUsage"),
    "kvsim.records.request": ("Request",),
    "kvsim.sched.scheduler": (
        "SCHEDULERS",
        "Scheduler",
        "SchedulerConfig",
        "StepOutput",
        "StepPlan",
    ),
    "kvsim.testing.allocator": ("check_allocator",),
    "kvsim.testing.eviction": ("check_eviction",),
    "kvsim.testing.router": ("check_router",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'kvsim.plugins' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
