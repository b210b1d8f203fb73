"""Capacity by the rules of the engine that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from kvsim.budget.capacity import Capacity, capacity_of
from kvsim.config import Config
from kvsim.engines.registry import all_engines, get_engine
from kvsim.kv.allocator_spec import parse_allocator

if TYPE_CHECKING:
    from kvsim.options import Options


def capacity(**options: Unpack[Options]) -> Capacity:
    """Compute how many KV blocks, tokens and requests fit.

    Parameters
    ----------
    **options : fields of :class:`kvsim.config.Config`: model, gpu, dtype, kv_cache_dtype,
        allocator (``paged`` with modifiers), engine, ...; the engine determines the memory for KV,
        the pages and the limits

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
    engine = get_engine(config.engine)
    for name, other in all_engines().items():
        for field in other.options if type(other) is not type(engine) else ():
            if getattr(config, field) != Config.model_fields[field].default:
                raise ValueError(f"{field}: only engine {name} supports it")
    return engine.capacity(config)


def paged_capacity(config: Config) -> Capacity:
    """Compute the capacity of a paged allocator; modifiers of its name change the KV layout."""
    allocator = parse_allocator(config.allocator)
    if allocator.base != "paged":
        raise ValueError(
            f"allocator {allocator.base!r}: capacity computes the blocks of paged; give "
            "paged with modifiers, or run kvsim compare for other allocators"
        )
    changes = {
        "kv_cache_dtype": allocator.kv_cache_dtype,
        "block_size": allocator.params.get("block_size"),
    }
    given = {name: value for name, value in changes.items() if value is not None}
    return capacity_of(config.model_copy(update=given), **allocator.what_if)
