"""Capacity by SGLang's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.capacity import Capacity, deployment_fields, lengths_to, resolve_memory
from kvsim.budget.tuning import tuned_in_vain
from kvsim.engine.setup import of_engine
from kvsim.engines.sglang.kv.radix import pool_bytes_of
from kvsim.engines.sglang.pages import span_of
from kvsim.engines.sglang.setup import check_layers, fraction_of, overlaps, pools_of, settings_of

if TYPE_CHECKING:
    from kvsim.budget.capacity import Memory
    from kvsim.config import Config
    from kvsim.engines.sglang.setup import Pools


def capacity_of(config: Config) -> Capacity:
    """Compute the capacity of SGLang's pool, in tokens and pages."""
    config = of_engine(config)
    memory = resolve_memory(config)
    check_layers(config, memory, memory.layout)
    pools = pools_of(config, memory, memory.layout)
    settings = settings_of(config, memory, pools, overlap=overlaps(config))
    size, longest = span_of(config), memory.limits.max_model_len
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
    used = pools.num_bytes + (pools.states.num_bytes if pools.states else 0)
    total = memory.budget.weights + used if pinned else int(free * fraction)
    return Capacity(
        **deployment_fields(config, memory),
        block_size=size,
        bytes_per_block=token_bytes * size // config.decode_context_parallel_size,
        num_gpu_blocks=pools.tokens // size,
        num_tokens=pools.tokens,
        logged_concurrency=pools.tokens / longest,
        max_concurrency=counts,
        max_concurrency_decoding=counts,
        budget_bytes={
            "total": total,
            "weights": memory.budget.weights,
            "kv_cache": pools.num_bytes,
            **({"states": pools.states.num_bytes} if pools.states else {}),
        },
        kv_cache_bytes_interval=None,
        num_gpu_blocks_range=None,
        fits=at_once(longest) > 0,
        assumptions=_assumptions(config, memory, fraction, settings.max_running_requests),
        engine="sglang",
        states=_states(memory, pools),
    )


def _states(memory: Memory, pools: Pools) -> dict[str, int] | None:
    """Return the sizes of a model's states, None without states; SGLang does not pad them."""
    if pools.states is None:
        return None
    return {
        "num_layers": memory.model.num_state_layers,
        "bytes_per_state": pools.states.state_bytes,
        "padding_bytes": 0,
        "blocks_per_request": pools.states.per_request,
        "slots": pools.states.slots,
    }


def _assumptions(config: Config, memory: Memory, fraction: float, running: int) -> tuple[str, ...]:
    """Name the values that the user did not set."""
    notes = ["memory and limits of SGLang 0.5.23"]
    pinned = config.kv_cache_memory_bytes or config.num_gpu_blocks_override
    if config.mem_fraction_static is None and not pinned:
        notes.append(f"mem_fraction_static {fraction} (SGLang's for this GPU)")
    if config.max_running_requests is None and config.max_num_seqs is None:
        notes.append(f"max_running_requests {running}")
    if (shares := config.decode_context_parallel_size) > 1:
        notes.append(f"a token's latents on one of {shares} GPUs")
    if (ranks := config.dwdp_size) > 1:
        notes.append(f"1/{ranks} of the routed experts, and buffers for the rest of two layers")
    if config.max_model_len is None:
        notes.append(f"context length {memory.limits.max_model_len} (the model's)")
    return (*notes, *tuned_in_vain(config, memory))
