"""How much fits under a paged allocator, its what-if modifiers included."""

from __future__ import annotations

from typing import Any

from kvsim.budget.capacity import Capacity, capacity_of
from kvsim.config import Config
from kvsim.kv.allocator_spec import parse_allocator


def capacity(**options: Any) -> Capacity:
    """Compute how many KV blocks, tokens and requests fit.

    Parameters
    ----------
    **options : fields of :class:`kvsim.config.Config`: model, gpu, dtype, kv_cache_dtype,
        allocator (``paged`` with modifiers), ...

    Raises
    ------
    ValueError
        For unknown names, wrong values, models that do not fit, and allocators without blocks.

    Examples
    --------
    >>> c = capacity(model="llama-3-8b", gpu="a100-80gb", kv_cache_memory_bytes=60 * 10**9)
    >>> c.num_gpu_blocks
    28610
    """
    config = Config.build(**options)
    allocator = parse_allocator(config.allocator)
    if allocator.base != "paged":
        raise ValueError(
            f"allocator {allocator.base!r}: capacity counts blocks; give paged with modifiers, "
            "or let kvsim compare show what the others hold"
        )
    changes: dict[str, Any] = {}
    if allocator.kv_cache_dtype is not None:
        changes["kv_cache_dtype"] = allocator.kv_cache_dtype
    if allocator.params.get("block_size") is not None:
        changes["block_size"] = allocator.params["block_size"]
    return capacity_of(config.model_copy(update=changes), **allocator.what_if)
