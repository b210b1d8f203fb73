"""The setup of replicas that read a store into their host memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.engine.setup import with_events
from kvsim.engines.sglang.records.storage import StopRule, Storage
from kvsim.engines.sglang.sched.settings import SglangSettings
from kvsim.registry import parse_spec

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.engine.setup import Setup
    from kvsim.fleet.kv_store.store import Store

#: Longest time that SGLang waits for a token of a read under ``timeout``, seconds.
TIMEOUT_PER_TOKEN = 0.25 / 1024


def with_storage(setup: Setup, config: Config, store: Store) -> Setup:
    """Return a setup of SGLang replicas that read a store into their host memory.

    Raises
    ------
    ValueError
        If the replicas have no host tier or use drafts, or the store cannot serve host tiers.
    """
    settings = setup.scheduler_config.engine_settings
    if not isinstance(settings, SglangSettings) or not setup.kv_config.host_slots:
        raise ValueError("kv_store: needs enable_hierarchical_cache under sglang")
    if not store.serves_hosts:
        raise ValueError(f"kv_store {config.kv_store!r}: must be mooncake or file under sglang")
    if settings.speculation is not None:
        raise ValueError(
            "kv_store: storage behind a host tier is not modelled with drafts, whose pages it "
            "would have to name; leave out speculative_algorithm"
        )
    if "pull" in parse_spec(config.kv_store or "")[1]:
        raise ValueError(f"kv_store {config.kv_store!r}: pull has no effect under sglang; omit it")
    stop_rule = StopRule[config.hicache_storage_prefetch_policy.upper()]
    storage = Storage(is_on=True, stop_rule=stop_rule, timeout_per_token=TIMEOUT_PER_TOKEN)
    scheduler = replace(setup.scheduler_config, engine_settings=replace(settings, storage=storage))
    return with_events(replace(setup, scheduler_config=scheduler))
