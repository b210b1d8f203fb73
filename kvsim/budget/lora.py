"""Bytes of the slots that vLLM allocates for LoRA adapters when it starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.layout import heads_per_rank
from kvsim.budget.weights import DTYPE_BYTES
from kvsim.catalog.spec import AttentionLayer
from kvsim.catalog.state import StateLayer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.catalog.spec import ModelSpec
    from kvsim.lora import LoRAConfig


class Linear(NamedTuple):
    """A matrix that an adapter changes, with its sizes on one rank."""

    inputs: float
    outputs: float


def lora_bytes(
    model: ModelSpec,
    lora: LoRAConfig,
    *,
    dtype: str = "bf16",
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Bytes of the slots for adapters on one GPU.

    Each slot has two matrices of rank ``max_lora_rank`` per linear layer: one as wide as the
    layer's input, one as wide as its output. This is an estimate: in vLLM the model's code lists
    the layers with adapters. Embeddings, the LM head and routers are assumed to have none.
    """
    tp = tensor_parallel_size
    per_stage = -(-model.num_layers // pipeline_parallel_size)
    elements = 0.0
    for index, mixer in enumerate(model.mixers_of(per_stage)):
        for linear in _linears(model, mixer, index, tp):
            elements += lora.max_lora_rank * (linear.inputs + linear.outputs)
    return int(lora.max_loras * elements * DTYPE_BYTES[dtype])


def _linears(
    model: ModelSpec, mixer: AttentionLayer | StateLayer | None, index: int, tp: int
) -> Iterator[Linear]:
    if isinstance(mixer, AttentionLayer):
        yield from _attention(model, mixer, tp)
    elif mixer is not None:
        yield from _state(model, mixer, tp)
    alone = any(one is None for one in model.mixers)
    beside = isinstance(mixer, StateLayer) and "P" in model.layer_pattern
    if mixer is None or not (alone or beside):
        yield from _mlp(model, index, tp)


def _attention(model: ModelSpec, layer: AttentionLayer, tp: int) -> Iterator[Linear]:
    """Yield queries, keys, values and output; every rank computes all of MLA's latents."""
    h, heads = model.hidden_size, model.num_heads / tp
    if model.is_mla:
        queries = heads * (model.qk_nope_head_dim + model.qk_rope_head_dim)
        if model.q_lora_rank:
            yield Linear(h, model.q_lora_rank)
        yield Linear(model.q_lora_rank or h, queries)
        yield Linear(h, model.kv_lora_rank + model.qk_rope_head_dim)
        yield Linear(model.kv_lora_rank, heads * (model.qk_nope_head_dim + model.v_head_dim))
        yield Linear(heads * model.v_head_dim, h)
        return
    queries = heads * layer.head_dim
    yield Linear(h, queries * (2 if model.attention_gate else 1))
    values = heads_per_rank(layer.num_kv_heads, tp) * layer.head_dim
    yield from (Linear(h, values), Linear(h, values), Linear(queries, h))


def _state(model: ModelSpec, state: StateLayer, tp: int) -> Iterator[Linear]:
    """Yield the input projection of convolution and gate, and the output projection."""
    yield Linear(model.hidden_size, state.width / tp + state.num_conv_channels(tp))
    yield Linear(state.width / tp, model.hidden_size)


def _mlp(model: ModelSpec, index: int, tp: int) -> Iterator[Linear]:
    """Yield the matrices of the MLP, or of all experts: each has a separate adapter."""
    h = model.hidden_size
    width, count = model.intermediate_size / tp, 1
    if model.is_moe and index >= model.num_dense_layers:
        width = model.moe_intermediate_size / tp
        count = model.num_experts + model.num_shared_experts
    for _ in range(count):
        for _ in range(2 if model.gated_mlp else 1):
            yield Linear(h, width)
        yield Linear(width, h)
