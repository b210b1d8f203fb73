"""How much fits, by the rules of the engine that is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.budget.capacity import SHORTEST, Capacity, resolve_memory
from kvsim.config import Config
from kvsim.engine.sglang import check_layers, fraction_of, of_engine, page_size_of, pools_of
from kvsim.engine.sglang import settings_of as sglang_settings
from kvsim.kv.capacity import capacity as vllm_capacity
from kvsim.kv.radix import pool_bytes_of
from kvsim.sglang_options import SGLANG_FIELDS

if TYPE_CHECKING:
    from kvsim.budget.capacity import Memory


def capacity(**options: Any) -> Capacity:
    """Compute how many KV blocks, tokens and requests fit.

    Parameters
    ----------
    **options : fields of :class:`kvsim.config.Config`: model, gpu, dtype, kv_cache_dtype,
        allocator (``paged`` with modifiers), engine, ...; with ``engine="sglang"`` the share of
        memory, the pages and the limits are SGLang's

    Raises
    ------
    ValueError
        For unknown names, wrong values, models that do not fit, and allocators without blocks.

    Examples
    --------
    >>> c = capacity(model="llama-3-8b", gpu="a100-80gb", kv_cache_memory_bytes=60 * 10**9)
    >>> c.num_gpu_blocks
    28610
    >>> capacity(model="llama-3-8b", gpu="a100-80gb", engine="sglang").block_size
    1
    """
    config = Config.build(**options)
    if config.engine != "sglang":
        for field in SGLANG_FIELDS:
            if getattr(config, field) != Config.model_fields[field].default:
                raise ValueError(f"{field}: only engine sglang has such a setting")
        return vllm_capacity(**options)
    return _sglang_capacity(of_engine(config))


def _sglang_capacity(config: Config) -> Capacity:
    """Compute the capacity of SGLang's pool: tokens in pages, beside the weights."""
    memory = resolve_memory(config)
    check_layers(config, memory, memory.layout)
    pools = pools_of(config, memory, memory.layout)
    settings = sglang_settings(config, memory, pools.tokens, overlap=True)
    size, longest = page_size_of(config), memory.limits.max_model_len
    window, token_bytes, _ = pool_bytes_of(
        memory.layout, hybrid=not config.disable_hybrid_kv_cache_manager
    )

    def at_once(length: int) -> int:
        fit = pools.tokens // (-(-length // size) * size)
        if window:
            fit = min(fit, pools.windows // (-(-min(length, window) // size) * size))
        return min(fit, settings.max_running_requests)

    lengths = [SHORTEST << i for i in range(64) if SHORTEST << i < longest] + [longest]
    counts = {str(length): at_once(length) for length in lengths}
    fraction, free = fraction_of(config, memory)
    pinned = config.kv_cache_memory_bytes or config.num_gpu_blocks_override
    total = memory.budget.weights + pools.num_bytes if pinned else int(free * fraction)
    return Capacity(
        model=memory.model.name,
        gpu=memory.gpu.name,
        kv_cache_dtype=memory.layout.dtype.name,
        tensor_parallel_size=config.tensor_parallel_size,
        pipeline_parallel_size=config.pipeline_parallel_size,
        max_model_len=longest,
        bytes_per_token=memory.layout.bytes_per_token,
        scale_bytes_per_token=memory.layout.scale_bytes_per_token,
        block_size=size,
        bytes_per_block=token_bytes * size,
        num_gpu_blocks=pools.tokens // size,
        num_tokens=pools.tokens,
        logged_concurrency=pools.tokens / longest,
        max_concurrency=counts,
        max_concurrency_decoding=counts,
        budget_bytes={
            "total": total,
            "weights": memory.budget.weights,
            "kv_cache": pools.num_bytes,
        },
        num_gpu_blocks_range=None,
        fits=at_once(longest) > 0,
        assumptions=_assumptions(config, memory, fraction, settings.max_running_requests),
        engine="sglang",
    )


def _assumptions(config: Config, memory: Memory, fraction: float, running: int) -> tuple[str, ...]:
    """Name what the user left open."""
    notes = ["the memory and the limits of SGLang 0.5.23"]
    pinned = config.kv_cache_memory_bytes or config.num_gpu_blocks_override
    if config.mem_fraction_static is None and not pinned:
        notes.append(f"mem_fraction_static {fraction} (SGLang's for this GPU)")
    if config.max_running_requests is None and config.max_num_seqs is None:
        notes.append(f"max_running_requests {running}")
    if config.max_model_len is None:
        notes.append(f"context length {memory.limits.max_model_len} (the model's)")
    return tuple(notes)
