"""The fields of each compiled variant that its rules read as constants."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kvsim.engines.registry import all_engines, engine_name
from kvsim.records.engine import Limits
from kvsim.records.eviction import LRU
from kvsim.records.kv import PAGED

#: Limits that every variant reads; all others are constant in the specialized variant.
READ = frozenset(
    (
        *("max_model_len", "max_num_seqs", "max_active", "max_num_batched_tokens", "backlog"),
        *("max_num_scheduled_tokens", "long_prefill_token_threshold", "enable_chunked_prefill"),
        *("swaps", "asynchronous", "depth", "clock_ties", "draw_seed"),
        *("encoder_budget", "encoder_cache_size", "whole_items"),
    )
)

#: Values by "Record.field" of the specialized variant: paged under vllm, FCFS, one group of full
#: attention, LRU.
SPECIALIZED = {
    **{f"Limits.{name}": int(v) for name, v in asdict(Limits()).items() if name not in READ},
    "Connector.kind": 0,
    "Trace.has_ranks": 0,
    "Trace.has_loras": 0,
    "Trace.has_samples": 0,
    "Trace.has_skips": 0,
    "KV.manager": PAGED,
    "KV.num_groups": 1,
    "KV.num_specs": 1,
    "KV.has_windows": 0,
    "KV.reserve_output": 0,
    "KV.num_hash_lookahead_tokens": 0,
    "KV.num_unnamed_tokens": 0,
    "KV.drops_last_block": 0,
    "KV.has_states": 0,
    "KV.names_by_group": 0,
    "KV.matches_partially": 0,
    "KV.replay_window": 0,
    "KVGroup.extra_retained": 0,
    "KVGroup.is_cached": 1,
    "KVGroup.num_spec_blocks": 0,
    "RequestBlocks.has_items": 0,
    "RequestBlocks.has_numbers": 0,
    "KVGroup.state_bytes": 0,
    "KVGroup.window": 0,
    "KVGroup.kind": 0,
    "KVGroup.sees_all": 1,
    "KVGroup.has_holes": 0,
    "KVGroup.is_state": 0,
    "KVGroup.caches_states": 0,
    "KVGroup.holds_one": 0,
    "KVGroup.drops_last_block": 0,
    "KVGroup.has_drafter": 0,
    "KVGroup.num_retired": 0,
    "KVGroup.keys_per_block": 1,
    "LookupSpec.num_groups": 1,
    "LookupSpec.kind": 0,
    "LookupSpec.extra_retained": 0,
    "LookupSpec.drops_last_block": 0,
    "BlockPool.policy": LRU,
    "BlockPool.has_host": 0,
    "BlockPool.tracks_sessions": 0,
    "BlockPool.tracks_pins": 0,
    "BlockPool.num_hash_aliases": 0,
    "BlockPool.has_events": 0,
    "Cost.num_layers": 1,
    "Cost.has_samples": 0,
    "Cost.has_drafts": 0,
    "Layers.draft_pairs": 0,
    "Layers.kind": 0,
    "Replica.record_steps": 0,
    "Replica.num_swapped": 0,
    "Replica.swapped_bytes": 0,
    "Replica.num_bins": 0,
    "Replica.never_reject": 0,
    "Replica.num_idle": 0,
    "Moved.fetched": 0,
    "Moved.stored": 0,
    "Moved.paged_in": 0,
    "Moved.paged_out": 0,
    "Moved.num_faults": 0,
}

#: The specialized variant with KV cache events, which some routers and stores need.
WITH_EVENTS = {**SPECIALIZED, "BlockPool.has_events": 1}

_ORDERS = frozenset(
    (
        *("BlockPool.policy", "BlockPool.tracks_sessions", "Limits.by_priority", "Trace.has_ranks"),
        *("Limits.has_own_priority", "Limits.reranks", "Limits.has_own_victim"),
    )
)
#: The specialized variant under any eviction policy and any priorities, a user's included.
OWN_ORDER = {name: value for name, value in SPECIALIZED.items() if name not in _ORDERS}

_MEMORY = frozenset(
    (
        *("KV.manager", "KV.num_groups", "KV.num_specs", "KV.reserve_output"),
        *("KVGroup.num_retired", "Replica.num_swapped", "Replica.swapped_bytes"),
        *("Limits.scheduler", "Cost.has_samples", "Trace.has_samples"),
    )
)
#: The specialized variant under any KV-cache manager, any scheduler, and with parallel samples.
OTHER_MEMORY = {name: value for name, value in SPECIALIZED.items() if name not in _MEMORY}

#: Packages and modules of rules that the specialized variant never calls.
OTHER_KINDS = frozenset(
    (
        *("baselines", "tensorrt_llm", "connector", "managers", "offloading"),
        *("blocks.checkpoint", "blocks.contents", "blocks.host_tier", "blocks.mamba"),
        *("blocks.partial_keys", "events", "idle_time", "memory_map"),
        *("eviction.belady", "eviction.lfu", "eviction.ranking", "eviction.s3fifo"),
        "eviction.sieve",
        *("vllm.dlpm", "vllm.encoder", "vllm.fairness", "vllm.grammar", "vllm.lora"),
        *("vllm.overload", "vllm.replay", "vllm.reset", "vllm.sessions"),
        "vllm.speculation",
    )
)

#: Constant values by variant and "Record.field".
CONSTANTS = {
    "specialized": SPECIALIZED,
    "with-events": WITH_EVENTS,
    "own-order": OWN_ORDER,
    "other-memory": OTHER_MEMORY,
    "": {},
}

#: The variants without an engine's own loop, the fastest first; the general one serves all others.
OF_VLLM = ("specialized", "with-events", "own-order", "other-memory")

#: By engine with its own loop: its variants.
OF_ENGINES = {
    name: variants
    for name, engine in all_engines().items()
    if (variants := engine.variants(SPECIALIZED)) is not None
}
for _variants in OF_ENGINES.values():
    CONSTANTS |= _variants.constants


def has_rule(variant: str | None, module: str) -> bool:
    """Return True if a variant contains the rules of a module (named as in ``OTHER_KINDS``)."""
    for variants in OF_ENGINES.values():
        if variant in variants.constants:
            return variants.has_rule(variant, module)
    is_general = variant not in OF_VLLM
    if is_general or module.partition(".")[0] in OF_ENGINES:
        return module.partition(".")[0] not in OF_ENGINES
    if variant == "with-events" and module == "events":
        return True
    if variant == "own-order" and module.startswith(("eviction.", "blocks.contents")):
        return True
    if variant == "other-memory" and module.startswith(("managers", "baselines", "tensorrt_llm")):
        return True
    return OTHER_KINDS.isdisjoint((module, module.partition(".")[0]))


def variant_of(state: Any) -> str:
    if state.limits.has_own_loop:
        return OF_ENGINES[engine_name(state.limits.scheduler)].variant_of(state)
    records = _records(state)
    for variant in OF_VLLM:
        if all(_known(records, *known) for known in CONSTANTS[variant].items()):
            return variant
    return ""


def _records(state: Any) -> dict[str, list[Any]]:
    """Return by class name the records with fields that variants fix."""
    return {
        "Replica": [state],
        "Limits": [state.limits],
        "Trace": [state.trace],
        "Connector": [state.connector],
        "KV": [state.kv],
        "BlockPool": [state.kv.pool],
        "Moved": [state.kv.moved],
        "Cost": [state.cost],
        "RequestBlocks": list(state.kv.request_blocks[:1]),  # these fields are equal in all
        "KVGroup": list(state.kv.groups),
        "LookupSpec": list(state.kv.specs),
        "Layers": list(state.cost.layers),
    }


def _known(records: dict[str, list[Any]], name: str, value: int) -> bool:
    record, field = name.split(".")
    return all(getattr(one, field) == value for one in records[record])
