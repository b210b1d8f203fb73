"""The fixed settings of SGLang's compiled variants, which its rules read as constants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.engine import Variants
from kvsim.engines.policies import SGLANG
from kvsim.records.kv import RADIX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.records.engine import Replica

#: Common modules that SGLang's rules call; in its variants, rules of other modules do nothing.
OF_SGLANG = frozenset(
    (
        *("abort", "arrival", "batch", "blocks.keys", "engine", "events", "idle_time", "kv"),
        *("costs.host_weights", "own_loop"),
        *("links", "memory_map", "price", "published_metrics", "queue", "recorder", "usage"),
        *("vllm.speculation", "waiting_for_kv", "work"),
    )
)

#: Modules of SGLang's rules that only a replica with more than one pool, or tier, calls.
OF_POOLS = frozenset(
    (
        *("sglang.adapters", "sglang.delayer", "sglang.draining", "sglang.speculation"),
        *("sglang.host.backup", "sglang.host.cache", "sglang.host.load", "sglang.host.repair"),
        *("sglang.host.storage", "sglang.tree.recent", "sglang.tree.slide"),
        *("sglang.states", "sglang.tree.states", "sglang.tree.state_slots"),
        *("sglang.tree.window_slots", "vllm.speculation"),
    )
)


def variants(specialized: Mapping[str, int]) -> Variants:
    """Return two variants: one pool and no host tier, and all other replicas."""
    # Features that no replica with a radix cache has.
    pools = {
        **{
            name: specialized[name]
            for name in specialized
            if name.partition(".")[0] in ("Limits", "Moved") and name != "Limits.has_loras"
        },
        "Limits.scheduler": SGLANG,
        "Limits.has_own_loop": 1,
        "Connector.kind": 0,
        "KV.manager": RADIX,
        "KV.has_states": 0,
        "BlockPool.has_host": 0,
        "Cost.has_samples": 0,
        "Replica.num_swapped": 0,
        "Replica.swapped_bytes": 0,
    }

    # Features that a replica with one pool and no host tier does not have, either.
    one_pool = {
        **pools,
        "BlockPool.has_events": 0,
        "Limits.has_loras": 0,
        "Adapters.is_on": 0,
        "Delayer.is_on": 0,
        "Speculation.is_on": 0,
        "Radix.ahead": 0,
        "Cost.has_drafts": 0,
        "Radix.window": 0,
        "Radix.has_states": 0,
        "Radix.write_policy": 0,
        "Radix.emits_events": 0,
        "Node.on_host_only": 0,
        "Storage.is_on": 0,
    }
    return Variants({"sglang": one_pool, "sglang-pools": pools}, _has_rule, _variant_of)


def _has_rule(variant: str, module: str) -> bool:
    is_known = module.startswith("sglang.") or module in OF_SGLANG
    return is_known and (variant == "sglang-pools" or module not in OF_POOLS)


def _variant_of(state: Replica) -> str:
    tree = state.kv.radix
    has_pools = tree.window or tree.write_policy or tree.has_states or state.limits.has_loras
    scheduler = state.engines.sglang
    has_pools = has_pools or scheduler.speculation.is_on or scheduler.delayer.is_on
    return "sglang-pools" if has_pools else "sglang"
