"""Replicas that read a store: their setup, and the feature that offers them its contents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.engine.setup import with_events
from kvsim.engines.sglang.records.storage import StopRule, Storage
from kvsim.fleet.disaggregation.connectors import connected
from kvsim.fleet.kv_store.fetches import Fetches
from kvsim.fleet.kv_store.storage_reads import StorageReads
from kvsim.records.engine import SGLANG
from kvsim.registry import parse_spec

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.fleet.clock import FleetClock
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.kv_store.store import Store
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World
    from kvsim.pool_config import Role

#: Longest time that SGLang waits for a token of a read under ``timeout``, seconds.
TIMEOUT_PER_TOKEN = 0.25 / 1024


def with_store(setup: Setup, role: Role, config: Config, store: Store) -> Setup:
    """Return a setup of replicas that read a store, and publish what they compute.

    Raises
    ------
    ValueError
        If they cache no prefixes, or cannot receive KV.
    """
    if setup.scheduler_type.rules_of == SGLANG:
        return with_storage(setup, config, store)
    threshold = config.kv_recompute_threshold
    connecting = connected(setup, role, threshold, reads_store=True, option="kv_store")
    if not setup.kv_config.enable_prefix_caching or not setup.kv.tells_events:
        raise ValueError("kv_store: needs prefix caching in the replicas; it extends what they hit")
    return with_events(connecting)


def with_storage(setup: Setup, config: Config, store: Store) -> Setup:
    """Return a setup of SGLang replicas that read a store into their hosts.

    Raises
    ------
    ValueError
        If they have no host tier, or the store does not serve hosts.
    """
    settings = setup.scheduler_config.sglang
    if settings is None or not setup.kv_config.host_slots:
        raise ValueError(
            "kv_store: under sglang it stands behind the host tier; give enable_hierarchical_cache"
        )
    if not store.serves_hosts:
        raise ValueError(f"kv_store {config.kv_store!r}: not under sglang; mooncake is")
    if "pull" in parse_spec(config.kv_store or "")[1]:
        raise ValueError(f"kv_store {config.kv_store!r}: pull is not read under sglang")
    stop_rule = StopRule[config.hicache_storage_prefetch_policy.upper()]
    storage = Storage(is_on=True, stop_rule=stop_rule, timeout_per_token=TIMEOUT_PER_TOKEN)
    scheduler = replace(setup.scheduler_config, sglang=replace(settings, storage=storage))
    return with_events(replace(setup, scheduler_config=scheduler))


def fetches_of(
    world: World, drive: FleetClock, reader: Pool, store: Store, fabric: Fabric
) -> Fetches | StorageReads:
    """Return the feature by which a pool reads a store; SGLang's replicas read by themselves."""
    if reader.setup.scheduler_type.rules_of == SGLANG:
        return StorageReads(reader, store, fabric, reader.gateways.prompt_keys)
    return Fetches(world, drive, reader, store, fabric)
