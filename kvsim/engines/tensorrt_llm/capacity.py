"""Capacity by TensorRT-LLM's rule: a fraction of the memory left by weights and activations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.engine.capacity import paged_capacity
from kvsim.engine.setup import of_engine
from kvsim.engines.registry import engine_for
from kvsim.engines.tensorrt_llm.setup import FREE_FRACTION

if TYPE_CHECKING:
    from kvsim.budget.capacity import Capacity
    from kvsim.config import Config


def capacity_by_fraction(config: Config) -> Capacity:
    """Compute the capacity with the engine's defaults filled in."""
    found = paged_capacity(of_engine(config))
    fraction = config.kv_cache_free_gpu_memory_fraction or FREE_FRACTION
    share = f"KV memory: {fraction:g} of the memory left by weights, activations and CUDA graphs"
    basis = filter(None, (engine_for(config).basis,))
    return replace(found, engine="tensorrt-llm", assumptions=(*basis, share, *found.assumptions))
