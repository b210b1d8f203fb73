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

#: Current module of each name.
_HOME = {
    "ALLOCATORS": "kvsim.kv.manager",
    "AUTOSCALERS": "kvsim.fleet.scaling.autoscaler",
    "COST_MODELS": "kvsim.cost.model",
    "DISAGGREGATIONS": "kvsim.fleet.disaggregation.policy",
    "EVICTION_POLICIES": "kvsim.kv.eviction",
    "FLOW_CONTROLS": "kvsim.fleet.admission.flow_control",
    "MIGRATIONS": "kvsim.fleet.migration.policy",
    "NO_HIT": "kvsim.kv.manager",
    "NO_TRANSFERS": "kvsim.kv.manager",
    "REJECT": "kvsim.fleet.routing.router",
    "ROUTERS": "kvsim.fleet.routing.router",
    "SCHEDULERS": "kvsim.sched.scheduler",
    "STORES": "kvsim.fleet.kv_store.store",
    "Autoscaler": "kvsim.fleet.scaling.autoscaler",
    "Backend": "kvsim.engine.backend",
    "Candidate": "kvsim.fleet.migration.policy",
    "Cause": "kvsim.kv.usage",
    "ContiguousManager": "kvsim.kv.contiguous",
    "CostConfig": "kvsim.cost.model",
    "CostModel": "kvsim.cost.model",
    "Disaggregation": "kvsim.fleet.disaggregation.policy",
    "EvictionPolicy": "kvsim.kv.eviction",
    "Facts": "kvsim.fleet.facts",
    "FlowControl": "kvsim.fleet.admission.flow_control",
    "Fullness": "kvsim.fleet.migration.policy",
    "Hit": "kvsim.kv.manager",
    "IncomingRequest": "kvsim.engine.incoming",
    "KVCacheConfig": "kvsim.kv.manager",
    "KVCacheManager": "kvsim.kv.manager",
    "KVUsage": "kvsim.kv.usage",
    "Load": "kvsim.fleet.scaling.autoscaler",
    "Local": "kvsim.fleet.routing.view",
    "Migration": "kvsim.fleet.migration.policy",
    "PagedManager": "kvsim.kv.paged",
    "PoolLoad": "kvsim.fleet.scaling.autoscaler",
    "Portion": "kvsim.fleet.kv_store.store",
    "PrefixIndex": "kvsim.fleet.prefix_index.index",
    "PlacementContext": "kvsim.fleet.disaggregation.placement_context",
    "ReplicaView": "kvsim.fleet.routing.view",
    "Request": "kvsim.records.request",
    "Router": "kvsim.fleet.routing.router",
    "Scheduler": "kvsim.sched.scheduler",
    "SchedulerConfig": "kvsim.sched.scheduler",
    "Scraped": "kvsim.fleet.routing.view",
    "StepCost": "kvsim.cost.model",
    "StepOutput": "kvsim.sched.scheduler",
    "StepPlan": "kvsim.sched.scheduler",
    "Store": "kvsim.fleet.kv_store.store",
    "Transfers": "kvsim.kv.manager",
    "Waiting": "kvsim.fleet.admission.flow_control",
    "check_allocator": "kvsim.testing.allocator",
    "check_eviction": "kvsim.testing.eviction",
    "check_router": "kvsim.testing.router",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'kvsim.plugins' has no attribute {name!r}")
    value: object = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
