"""Weights that each tensor-parallel rank holds whole or stores twice.

Ranks split tensors that have heads or a width (read in vLLM's code). Each rank holds all of the
routers, the projections of latents before their heads, compressors, and the indexers. It stores its
part of the latents' up-projections twice, the second time in 16 bits for decodes. Weights of one
GPU in GiB, logged / computed here / computed with all tensors split: DeepSeek-R1 on eight GPUs
79.74 / 79.52 / 78.35; GLM-5.2 in NVFP4 on four 106.86 / 106.09 / 103.4; Kimi-K2.5 on eight
73.58 / 71.18 / 69.28.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.weights import DTYPE_BYTES, QUANTIZED_BYTES, named_parts
from kvsim.catalog.compressed import replicated_params

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec


def replicated_bytes(
    model: ModelSpec,
    *,
    dtype: str = "bf16",
    quantization: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Return the bytes on one GPU beyond an even share of the weights."""
    element = DTYPE_BYTES[dtype]
    stored: float = element
    if quantization is not None and "attention" in named_parts(model, quantization):
        stored = QUANTIZED_BYTES[quantization]
    routers = model.num_moe_layers * model.num_router_params * element
    latents, copies = 0, 0
    if model.is_mla:
        ranks = model.q_lora_rank + model.kv_lora_rank + model.qk_rope_head_dim
        latents = len(model.layers) * model.hidden_size * ranks
        latents += model.num_index_layers * model.num_indexer_params
        heads = model.num_heads * (model.qk_nope_head_dim + model.v_head_dim)
        copies = len(model.layers) * model.kv_lora_rank * heads * element
    if model.compress_ratios:
        narrow, wide = replicated_params(model)
        latents, routers = narrow, routers + wide * element
    others = 1 - 1 / tensor_parallel_size
    share = -(-model.num_layers // pipeline_parallel_size) / model.num_layers
    whole = (routers + latents * stored) * others
    return int(share * (whole + copies / tensor_parallel_size))
