"""Replicas that read a store: their setup, and the feature that fetches entries for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engine.setup import with_events
from kvsim.engines.registry import engine_by_policy
from kvsim.fleet.disaggregation.connectors import connected
from kvsim.fleet.kv_store.fetches import Fetches

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.fleet.clock import FleetClock
    from kvsim.fleet.fabric import Fabric
    from kvsim.fleet.feature import Feature
    from kvsim.fleet.kv_store.store import Store
    from kvsim.fleet.pool import Pool
    from kvsim.fleet.world import World
    from kvsim.pool_config import Role


def with_store(setup: Setup, role: Role, config: Config, store: Store) -> Setup:
    """Return a setup of replicas that read a store, and publish the blocks that they compute.

    Raises
    ------
    ValueError
        If the replicas cache no prefixes, or cannot receive KV.
    """
    engine = engine_by_policy(setup.scheduler_type.rules_of)
    if engine.reads_store_itself:
        return engine.with_store(setup, config, store)
    threshold = config.kv_recompute_threshold
    connecting = connected(setup, role, threshold, reads_store=True, option="kv_store")
    if not setup.kv_config.enable_prefix_caching or not setup.kv.tells_events:
        raise ValueError("kv_store: needs enable_prefix_caching")
    return with_events(connecting)


def fetches_of(
    world: World, drive: FleetClock, reader: Pool, store: Store, fabric: Fabric
) -> Feature:
    engine = engine_by_policy(reader.setup.scheduler_type.rules_of)
    if engine.reads_store_itself:
        return engine.store_reads(reader, store, fabric)
    return Fetches(world, drive, reader, store, fabric)
