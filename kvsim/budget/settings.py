"""Settings derived from the configuration alone: model, and layout of KV, states and experts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim.attention.mamba import StateCache
from kvsim.budget.layout import KVLayout, kv_dtype, kv_layout
from kvsim.budget.versions import FIRST_LATENTS, precedes
from kvsim.budget.weights import weight_dtype
from kvsim.catalog import get_model, model_names, stored_as_named
from kvsim.engines.registry import get_engine

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec
    from kvsim.config import Config


def model_of(config: Config) -> ModelSpec:
    """Return the model, with the shape in ``hf_config_path`` if that is given.

    The model's name determines the format of its weights, unless that file names a format.
    """
    overrides = json.loads(config.hf_overrides) if config.hf_overrides else None
    model = _shaped(config, overrides)
    windows = [layer.window for layer in model.layers if layer.window is not None]
    if not config.disable_sliding_window or not windows:
        return model
    return replace(model, max_position_embeddings=min(model.max_position_embeddings, *windows))


def keeps_groups(config: Config) -> bool:
    """Return True if a window layer keeps only its window; False if all layers keep all tokens."""
    return not (config.disable_hybrid_kv_cache_manager or config.disable_sliding_window)


def _shaped(config: Config, overrides: dict[str, Any] | None) -> ModelSpec:
    if config.hf_config_path is None:
        return get_model(config.model, overrides)
    base = get_model(config.hf_config_path, overrides)
    if not isinstance(config.model, str):
        return base
    told = base.quantization is not None and base.name not in model_names()
    stored = {} if told else stored_as_named(config.model)
    return replace(base, name=config.model, **stored)


def ignored_overrides(config: Config) -> list[str]:
    """Return a note that names the keys of ``hf_overrides`` without effect on the model."""
    given = json.loads(config.hf_overrides) if config.hf_overrides else {}
    whole, unused = model_of(config), []
    for key in given:
        rest = {name: value for name, value in given.items() if name != key}
        without = config.model_copy(update={"hf_overrides": json.dumps(rest)})
        try:
            same = model_of(without) == whole
        except ValueError:  # the other keys need this one
            same = False
        unused += [key] if same else []
    return [f"{', '.join(unused)} of hf_overrides has no effect in kvsim"] if unused else []


def kv_cache_dtype_of(config: Config, model: ModelSpec) -> str:
    """Return the KV dtype: the configured one, or with ``auto`` the checkpoint's."""
    asked = config.kv_cache_dtype
    return model.kv_cache_dtype or asked if asked == "auto" else asked


def expert_replicas(config: Config) -> int:
    """Return the number of data-parallel replicas that share the routed experts of each layer.

    With expert parallelism all replicas share them. Without it, vLLM's replicas share them, too, as
    ranks of one server; replicas of other engines, and replicas that start, stop or fail
    independently, have their own experts.
    """
    shares = get_engine(config.engine).shares_experts or config.enable_dp_attention
    alone = not shares or config.autoscaler or config.failures
    shared = config.enable_expert_parallel or not alone
    return config.data_parallel_size if shared else 1


def expert_parallel_size(config: Config) -> int | None:
    """Return the number of ranks that share whole experts; None if each expert is sliced.

    As in vLLM, these are the tensor-parallel ranks of all data-parallel replicas.
    """
    if not has_whole_experts(config):
        return None
    return config.tensor_parallel_size * config.data_parallel_size


def has_whole_experts(config: Config) -> bool:
    """Return True if a GPU holds whole routed experts, not slices of all."""
    return config.enable_expert_parallel or config.dwdp_size > 1


def ranks_per_expert(config: Config) -> int:
    """Return the number of GPUs over which each routed expert is split; 1 if experts stay whole."""
    whole = has_whole_experts(config)
    return 1 if whole else config.tensor_parallel_size * expert_replicas(config)


def layout_of(
    config: Config,
    model: ModelSpec,
    dtype: str,
    kv_cache_dtype: str | None = None,
    /,
    **what_if: int | None,
) -> KVLayout:
    """Lay out the KV of a model with weights of a dtype, without a drafter's KV.

    Parameters
    ----------
    kv_cache_dtype : replaces the configured KV dtype
    **what_if : overrides of the model's attention, as for :func:`kvsim.budget.layout.kv_layout`
    """
    given, spec = config.mamba_ssm_cache_dtype, config.speculative_config
    conv = config.mamba_cache_dtype
    return kv_layout(
        model,
        kv_dtype(kv_cache_dtype or kv_cache_dtype_of(config, model), model_dtype=dtype),
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        without_latents=precedes(config.vllm_version, FIRST_LATENTS),
        model_dtype=dtype,
        state_dtype=None if given == "auto" else weight_dtype(given),
        conv_dtype=None if conv == "auto" else weight_dtype(conv),
        num_speculative_tokens=0 if spec is None else spec.num_speculative_tokens,
        **what_if,
    )


def state_cache(config: Config, model: ModelSpec) -> StateCache:
    """Return the storage of states; with prefix caching, blocks end with a state, as in vLLM."""
    spec = config.speculative_config
    drafts = 0 if spec is None else spec.num_speculative_tokens
    mode = "none" if config.enable_prefix_caching is False else "align"
    if config.mamba_cache_mode not in (None, mode):
        raise ValueError(
            f"mamba_cache_mode {config.mamba_cache_mode}: Mamba states are cached for "
            f"prefix caching, which is {'off' if mode == 'none' else 'on'}: must be "
            f"{mode}"
        )
    if mode == "none":
        return StateCache("none", drafts)
    if model.num_state_layers and not config.enable_chunked_prefill:
        raise ValueError(
            f"enable_chunked_prefill is off: {model.name} caches its states at the ends "
            "of chunks; turn enable_prefix_caching off, too"
        )
    return StateCache("align", drafts)
