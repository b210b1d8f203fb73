"""Options that tune a feature, and have no effect while it is off."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.lora import LORA_FLAGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.budget.capacity import Memory
    from kvsim.config import Config

#: The options that tune each feature. Servers accept them without it.
TUNED_BY: dict[str, tuple[str, ...]] = {
    "offload_group_size": ("offload_num_in_group", "offload_prefetch_step"),
    "enable_hierarchical_cache": ("hicache_ratio", "hicache_size", "hicache_write_policy"),
    "speculative_algorithm": (
        *("speculative_draft_model_path", "speculative_num_steps"),
        *("speculative_eagle_topk", "speculative_num_draft_tokens"),
    ),
    "enable_lora": (
        *(*LORA_FLAGS[1:], "max_loras_per_batch", "lora_eviction_policy"),
        *("enable_lora_overlap_loading", "lora_drain_wait_threshold"),
    ),
    "enable_prefill_delayer": (
        *("prefill_delayer_token_usage_low_watermark", "prefill_delayer_queue_min_ratio"),
        "prefill_delayer_max_delay_ms",
    ),
    "prefill_decode_interval": ("prefill_decode_interval_min_bs",),
    "enable_paged_experts": ("paged_experts_num_resident",),
}
#: The same for kinds of layers of a model.
TUNED_LAYERS: dict[str, tuple[str, ...]] = {
    "sliding windows": ("swa_full_tokens_ratio",),
    "states": (
        *("mamba_full_memory_ratio", "max_mamba_cache_size", "mamba_radix_cache_strategy"),
        *("mamba_track_interval", "mamba_max_states_per_path", "mamba_ssm_cache_dtype"),
        *("mamba_cache_dtype", "mamba_cache_mode"),
    ),
}


def tuned_in_vain(config: Config, memory: Memory) -> Iterator[str]:
    """Yield a note for each configured option of a feature or a kind of layer that is absent."""
    model = memory.model
    for feature, names in TUNED_BY.items():
        if not getattr(config, feature):
            yield from _ignored(config, names, feature)
    has = {
        "sliding windows": any(layer.window for layer in model.layers),
        "states": model.num_state_layers,
    }
    for kind, names in TUNED_LAYERS.items():
        if not has[kind]:
            yield from _ignored(config, names, f"{kind}, which {model.name} does not have")


def _ignored(config: Config, names: tuple[str, ...], without: str) -> Iterator[str]:
    for name in names:
        value = getattr(config, name)
        if value != type(config).model_fields[name].default:
            yield f"{name} {value} has no effect without {without}"


def more_buffers(config: Config, memory: Memory) -> Iterator[str]:
    """Yield a note if the buffers for offloaded layers take more memory than the layers free."""
    ahead = config.offload_prefetch_step
    if config.offload_group_size and memory.host_weights.saved < 0:
        yield (
            f"offload_prefetch_step {ahead}: the server allocates {ahead} buffers of a layer, "
            "which take more memory than its offloaded layers free"
        )
