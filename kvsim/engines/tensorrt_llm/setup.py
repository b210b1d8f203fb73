"""TensorRT-LLM's settings from a configuration: its defaults, its memory, its policy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.budget.capacity import resolve_memory
from kvsim.engines.policies import STATIC, TENSORRT_LLM
from kvsim.engines.tensorrt_llm.server_options import TensorrtLlmOptions

if TYPE_CHECKING:
    from kvsim.config import Config
    from kvsim.kv.manager import KVCacheConfig
    from kvsim.sched.scheduler import Scheduler, SchedulerConfig

#: Defaults of TensorRT-LLM's LLM API reference: tokens per block, most requests and most tokens of
#: a step, and the fraction of the free memory for KV.
TOKENS_PER_BLOCK, MAX_BATCH_SIZE, MAX_NUM_TOKENS, FREE_FRACTION = 32, 2048, 8192, 0.9
#: Fields that set the KV memory by another rule.
SIZED_BY = ("kv_cache_memory_bytes", "num_gpu_blocks_override", "gpu_memory_utilization")


def choices_of(config: Config) -> dict[str, Any]:
    """Return the engine's values for fields that a configuration does not set."""
    policy = config.capacity_scheduler_policy
    tokens = config.max_num_batched_tokens or MAX_NUM_TOKENS
    chosen = {
        "scheduler": "static" if policy == "static_batch" else "tensorrt-llm",
        "block_size": TOKENS_PER_BLOCK,
        "max_num_seqs": min(MAX_BATCH_SIZE, tokens),
        "max_num_batched_tokens": tokens,
    }
    sized = any(getattr(config, field) is not None for field in SIZED_BY)
    if not sized and "kv_cache" not in (config.logged or {}):
        chosen["kv_cache_memory_bytes"] = free_bytes(config, chosen)
    return chosen


def free_bytes(config: Config, chosen: dict[str, Any]) -> int:
    """Return the bytes of KV: a fraction of the memory without weights, activations and graphs."""
    given = {name for name in config.model_fields_set if getattr(config, name) is not None}
    limits = {name: value for name, value in chosen.items() if name not in given}
    whole = config.model_copy(update={**limits, "gpu_memory_utilization": 1.0})
    fraction = config.kv_cache_free_gpu_memory_fraction or FREE_FRACTION
    return int(fraction * resolve_memory(whole).budget.kv_cache)


def check_policy(config: Config, kind: type[Scheduler], name: str, *, is_engine: bool) -> None:
    """Refuse TensorRT-LLM's settings under other schedulers, and steps of less than a block."""
    if kind.rules_of == TENSORRT_LLM or (is_engine and kind.rules_of == STATIC):
        unit, most = config.block_size or TOKENS_PER_BLOCK, config.max_num_batched_tokens
        if most is not None and most < unit:
            raise ValueError(
                f"max_num_batched_tokens ({most}) must be at least block_size ({unit}) under "
                f"scheduler {name!r}: context chunks are whole blocks"
            )
        return
    for field in TensorrtLlmOptions.model_fields:
        if getattr(config, field) != type(config).model_fields[field].default:
            raise ValueError(f"{field}: needs scheduler 'tensorrt-llm', not {name!r}")


def with_policy(
    config: Config, kv_config: KVCacheConfig, scheduler_config: SchedulerConfig
) -> tuple[KVCacheConfig, SchedulerConfig]:
    """Return the settings of a capacity policy; only guaranteed_no_evict reserves whole prompts."""
    completes_all = config.capacity_scheduler_policy == "guaranteed_no_evict"
    kv_config = replace(kv_config, reserve_full_isl=completes_all)
    unit = kv_config.block_size
    return kv_config, replace(scheduler_config, completes_all=completes_all, chunk_unit=unit)
