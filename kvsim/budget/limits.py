"""vLLM's limits on lengths and batches, and its defaults for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.budget.budget import GIB, engine_of
from kvsim.budget.versions import V1, precedes
from kvsim.engines.registry import get_engine
from kvsim.errors import FieldError
from kvsim.server_options import AUTO

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec, ModelSpec
    from kvsim.config import Config

#: Tokens of V0's prompt chunks, and the max_model_len above which V0 cut prompts into chunks.
V0_CHUNK, V0_WHOLE = 512, 32_768


@dataclass(frozen=True)
class Limits:
    """vLLM's limits for a model on a GPU, after filling in its defaults."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float


def limits_of(config: Config, model: ModelSpec, gpu: GpuSpec) -> Limits:
    """Fill in vLLM's defaults (API server): 0.33's for the GPU's memory class, or V0's.

    A ``max_model_len`` of auto is the model's own length until the KV memory is known. Before 0.8
    the defaults on all GPUs were 256 sequences, and steps of max_model_len tokens (at least 2048),
    or of 512 tokens if max_model_len exceeded 32,768.

    Raises
    ------
    ValueError
        If the limits contradict each other.
    """
    v0 = precedes(config.vllm_version, V1)
    max_model_len = config.max_model_len or AUTO
    if max_model_len == AUTO:  # until the KV memory is known, as vLLM does
        max_model_len = model.max_position_embeddings
    default_tokens, default_seqs = _defaults_by_memory(gpu)
    if v0:
        default_tokens = V0_CHUNK if max_model_len > V0_WHOLE else max(2048, max_model_len)
        default_seqs = 256
    if config.performance_mode == "throughput":
        default_tokens, default_seqs = 2 * default_tokens, 2 * default_seqs
    max_num_seqs = config.max_num_seqs or default_seqs
    tokens = config.max_num_batched_tokens
    if tokens is None:
        if not config.enable_chunked_prefill:  # as vLLM: a whole prompt must fit in a step
            default_tokens = max(default_tokens, max_model_len)
        tokens = min(max(default_tokens, max_num_seqs), max_num_seqs * max_model_len)
    elif tokens < max_num_seqs:
        if config.max_num_seqs is not None:
            raise ValueError(
                f"max_num_batched_tokens ({tokens}) must be at least max_num_seqs ({max_num_seqs})"
            )
        max_num_seqs = tokens
    _check_step(config, max_model_len, tokens)
    utilization = config.gpu_memory_utilization
    if utilization is None:
        utilization = engine_of(config.vllm_version).gpu_memory_utilization
    return Limits(max_model_len, max_num_seqs, tokens, utilization)


def _defaults_by_memory(gpu: GpuSpec) -> tuple[int, int]:
    """Return the default tokens and sequences of a step for a GPU's memory class."""
    memory = gpu.nominal_memory_bytes
    large = memory >= 70 * GIB and not gpu.name.startswith(("a100", "gb10"))
    return 16384 if memory >= 160 * GIB else 8192 if large else 2048, 1024 if large else 256


def _check_step(config: Config, max_model_len: int, tokens: int) -> None:
    """Raise ValueError for a step above the batch's limit, or too small for an unchunked prompt."""
    scheduled = config.max_num_scheduled_tokens
    for name, most in (("max_num_batched_tokens", tokens), ("max_num_scheduled_tokens", scheduled)):
        if most is None:
            continue
        if most > tokens:
            raise ValueError(f"{name} ({most}) must be at most max_num_batched_tokens ({tokens})")
        if not config.enable_chunked_prefill and most < max_model_len:
            raise ValueError(
                f"{name} ({most}) must be at least max_model_len ({max_model_len}) without chunked "
                "prefill"
            )


def refused_by_vllm(config: Config, model: ModelSpec) -> str | None:
    """Return a note on a setting that vLLM would refuse but kvsim simulates; None if none."""
    longest = model.max_position_embeddings
    if config.max_model_len is None or config.max_model_len <= longest:
        return None
    return (
        f"max_model_len {config.max_model_len:,} exceeds the {longest:,} of "
        f"{model.name}: vLLM would not start"
    )


def length_by_memory(config: Config, model: ModelSpec, limits: Limits) -> str | None:
    """Return a note on the max_model_len derived from memory; None unless it is auto."""
    if config.max_model_len != AUTO:
        return None
    longest, own = limits.max_model_len, model.max_position_embeddings
    if longest == own:
        return f"max_model_len {longest} (auto: the model's, which fits)"
    return f"max_model_len {longest} (auto: the longest that fits; the model's is {own})"


def check_context_parallel(config: Config, model: ModelSpec) -> None:
    """Raise ValueError if context parallelism cannot split the tokens of a block.

    The conditions are those of vLLM 0.33's source.
    """
    dcp, tp = config.decode_context_parallel_size, config.tensor_parallel_size
    if dcp == 1:
        return
    wrong = None
    if not get_engine(config.engine).has_context_parallel:
        wrong = f"engine {config.engine} does not support it"
    elif any(layer.window is not None for layer in model.layers):
        wrong = f"{model.name} has sliding-window layers, which vLLM does not split over ranks"
    elif model.is_mla:
        wrong = f"must divide tensor_parallel_size {tp}" if tp % dcp else None
    else:
        heads = model.num_kv_heads
        most, per_head = tp // heads, model.num_heads // heads
        if dcp > most:
            wrong = f"must be at most tensor_parallel_size over KV heads, {tp} // {heads}"
        elif per_head % dcp:
            wrong = f"must divide the {per_head} query heads of a KV head"
    if wrong is not None:
        raise FieldError("decode_context_parallel_size", f"is {dcp}: {wrong}")
