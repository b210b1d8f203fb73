"""Bytes of a model's weights on one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.layout import DTYPE_ALIASES
from kvsim.errors import unknown_name

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec

#: Bytes per parameter of the matrices a quantisation touches, its scales included: 4-bit with one
#: FP16 scale and zero point per 128 (GPTQ, AWQ); measured on checkpoints for bitsandbytes; 4-bit
#: with one 8-bit scale per 32 (MXFP4).
QUANTIZED_BYTES = {
    "fp8": 1.0,
    "int8": 1.0,
    "awq": 0.5195,
    "gptq": 0.5195,
    "bitsandbytes": 0.53,
    "mxfp4": 0.531,
}

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def weight_dtype(name: str) -> str:
    """Return kvsim's name of a 16- or 32-bit dtype; ``auto`` is bf16.

    Raises
    ------
    ValueError
        Naming the known dtypes.
    """
    wanted = "bf16" if name == "auto" else DTYPE_ALIASES.get(name.lower(), name.lower())
    if wanted not in DTYPE_BYTES:
        raise unknown_name("dtype", name, ["auto", "float16", "bfloat16", "float32", *DTYPE_BYTES])
    return wanted


def check_quantization(name: str | None) -> None:
    """Raise ValueError, naming the known ones, for an unknown quantisation."""
    if name is not None and name not in QUANTIZED_BYTES:
        raise unknown_name("quantization", name, QUANTIZED_BYTES)


def weight_bytes(
    model: ModelSpec,
    *,
    dtype: str = "bf16",
    quantization: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Bytes of weights on one GPU: the pipeline stage with most layers and an embedding.

    Quantisation leaves the embedding, the LM head and small parameters in ``dtype``; MXFP4 touches
    only the experts (gpt-oss). The vocabulary is padded to a multiple of 64, as vLLM does. Heads
    copied over ranks, norms and routers, all small, are counted as shared out.
    """
    element = DTYPE_BYTES[dtype]
    padded = -(-model.vocab_size // 64) * 64 - model.vocab_size
    embedding = model.num_embedding_params + padded * model.hidden_size
    head = 0
    if not model.tie_word_embeddings:
        head = model.num_lm_head_params + padded * model.hidden_size
    body = model.num_params - model.num_embedding_params - model.num_lm_head_params
    body_bytes = float(body * element)
    if quantization is not None:
        touched = model.num_routed_expert_params if quantization == "mxfp4" else body
        body_bytes += touched * (QUANTIZED_BYTES[quantization] - element)
    stages = pipeline_parallel_size
    share = -(-model.num_layers // stages) / model.num_layers
    ends = embedding + head if stages == 1 else max(embedding, head)
    return int((body_bytes * share + ends * element) / tensor_parallel_size)
