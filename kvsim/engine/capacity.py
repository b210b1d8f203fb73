"""Capacity by the rules of the engine that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from kvsim.budget.capacity import (
    Capacity,
    capacity_of,
    deployment_fields,
    lengths_to,
    resolve_memory,
)
from kvsim.config import Config
from kvsim.engines.sglang.kv.radix import pool_bytes_of
from kvsim.engines.sglang.server_options import SGLANG_FIELDS
from kvsim.engines.sglang.setup import check_layers, fraction_of, of_engine, page_size_of, pools_of
from kvsim.engines.sglang.setup import settings_of as sglang_settings
from kvsim.kv.allocator_spec import parse_allocator

if TYPE_CHECKING:
    from kvsim.budget.capacity import Memory
    from kvsim.options import Options


def capacity(**options: Unpack[Options]) -> Capacity:
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
    if config.engine == "sglang":
        return _sglang_capacity(of_engine(config))
    for field in SGLANG_FIELDS:
        if getattr(config, field) != Config.model_fields[field].default:
            raise ValueError(f"{field}: only engine sglang has such a setting")
    return _paged_capacity(config)


def _paged_capacity(config: Config) -> Capacity:
    """Compute the capacity of a paged allocator, its what-if modifiers included."""
    allocator = parse_allocator(config.allocator)
    if allocator.base != "paged":
        raise ValueError(
            f"allocator {allocator.base!r}: capacity counts blocks; give paged with modifiers, "
            "or let kvsim compare show what the others hold"
        )
    changes = {
        "kv_cache_dtype": allocator.kv_cache_dtype,
        "block_size": allocator.params.get("block_size"),
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return capacity_of(config.model_copy(update=given), **allocator.what_if)


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

    counts = {str(length): at_once(length) for length in lengths_to(longest)}
    fraction, free = fraction_of(config, memory)
    pinned = config.kv_cache_memory_bytes or config.num_gpu_blocks_override
    total = memory.budget.weights + pools.num_bytes if pinned else int(free * fraction)
    return Capacity(
        **deployment_fields(config, memory),
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
        kv_cache_bytes_interval=None,
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
