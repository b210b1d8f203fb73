"""Bytes of the activations that the kernels of a step read and write.

These bytes are few relative to those of the weights in a step with few tokens; with many tokens
they limit the arithmetic intensity of GEMMs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.weights import DTYPE_BYTES
from kvsim.cost.arithmetic import arithmetic_of

if TYPE_CHECKING:
    from kvsim.catalog.spec import AttentionLayer, ModelSpec
    from kvsim.cost.model import CostConfig
    from kvsim.cost.work import LayerClass


def gemm_activation_bytes(config: CostConfig) -> tuple[float, float]:
    """Return bytes of activations: per token for the layers, per sampled token for the LM head.

    A product of (m, k) by (k, n) reads k and writes n activations for each of m tokens. Arithmetic
    in fewer bits than 16 reads one byte and writes ``dtype``; the LM head is never quantised.
    """
    model, tp = config.model, config.tensor_parallel_size
    head = model.hidden_size + model.vocab_size / tp
    moved = activation_bytes(config, *activation_elements(config))
    return moved, head * DTYPE_BYTES[config.dtype]


def activation_bytes(config: CostConfig, read: float, written: float) -> float:
    wide = DTYPE_BYTES[config.dtype]
    narrow = arithmetic_of(config.gpu, config.quantization) != "16-bit"
    return read * (1 if narrow else wide) + written * wide


def activation_elements(config: CostConfig) -> tuple[float, float]:
    """Activations per token that the layers' GEMMs read and write, on one GPU."""
    return _elements(_shapes(config.model, config.tensor_parallel_size))


def routed_elements(config: CostConfig) -> tuple[float, float]:
    """Activations per token that the routed experts' GEMMs read and write, on one GPU."""
    return _elements(_routed_shapes(config.model, config.tensor_parallel_size))


def _elements(shapes: list[tuple[float, float]]) -> tuple[float, float]:
    read = written = 0.0
    for k, n in shapes:
        read += k
        written += n
    return read, written


def query_bytes(config: CostConfig, classes: list[LayerClass]) -> float:
    """Bytes per token of the queries and outputs of attention on one GPU.

    Each of their elements accounts for one multiply-add, two FLOPs, of a query-key pair.
    """
    elements = 0.0
    for layers in classes:
        elements += layers.pair_flops / 2
    return elements * DTYPE_BYTES[config.dtype]


def _shapes(model: ModelSpec, tp: int) -> list[tuple[float, float]]:
    """Return (k, n) of every GEMM of the layers, without the small routers."""
    shapes = [shape for layer in model.layers for shape in _attention_shapes(model, layer, tp)]
    if (state := model.state) is not None:
        h, inner = model.hidden_size, state.width / tp
        mixed = [(h, inner + state.num_conv_channels(tp)), (inner, h)]
        shapes += mixed * model.num_state_layers
    width, layers = model.moe_intermediate_size / tp, model.num_moe_layers
    shapes += _routed_shapes(model, tp)
    shapes += _mlp_shapes(model, width) * (model.num_shared_experts * layers)
    if latent := model.moe_latent_size:
        shapes += [(model.hidden_size, latent), (latent, model.hidden_size)] * layers
    dense = model.num_mlp_layers - model.num_moe_layers
    return shapes + _mlp_shapes(model, model.intermediate_size / tp) * dense


def _routed_shapes(model: ModelSpec, tp: int) -> list[tuple[float, float]]:
    width = model.moe_intermediate_size / tp
    visited = model.num_experts_per_token * model.num_moe_layers
    return _mlp_shapes(model, width, model.moe_latent_size) * visited


def _attention_shapes(
    model: ModelSpec, layer: AttentionLayer, tp: int
) -> list[tuple[float, float]]:
    h, heads = model.hidden_size, model.num_query_heads(layer) / tp
    if model.is_mla:
        latent, rope = model.kv_lora_rank, model.qk_rope_head_dim
        queries = heads * (model.qk_nope_head_dim + rope)
        q: list[tuple[float, float]] = [(h, queries)]
        if model.q_lora_rank:
            q = [(h, model.q_lora_rank), (model.q_lora_rank, queries)]
        values = heads * model.v_head_dim
        up = (latent, heads * model.qk_nope_head_dim + values)
        return [*q, (h, latent + rope), up, (values, h)]
    width = heads * layer.head_dim
    shared = layer.kind == "full" and model.full_key_is_value
    kv = layer.num_kv_heads / tp * layer.head_dim * (1 if shared else 2)
    return [(h, width + kv), (width, h)]


def _mlp_shapes(model: ModelSpec, width: float, inner: int = 0) -> list[tuple[float, float]]:
    hidden = inner or model.hidden_size
    return [(hidden, (2 if model.gated_mlp else 1) * width), (width, hidden)]
