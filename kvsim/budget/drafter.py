"""The model that drafts tokens: its parameters, its work per token, its KV."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvsim.budget.layout import KVLayout, attention_on_rank, kv_layout
from kvsim.budget.weights import DTYPE_BYTES, QUANTIZED_BYTES, weight_bytes
from kvsim.catalog import get_model, is_config_path

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec
    from kvsim.speculation import SpeculativeConfig

#: EAGLE-3 heads draft from a vocabulary of this size (yuhuili/EAGLE3-LLaMA3.1-Instruct-8B).
EAGLE3_VOCAB = 32_000
#: Vectors that a head joins: for EAGLE and MTP a hidden state of the target and the token's
#: embedding, for EAGLE-3 the hidden states of three layers, for DFlash of five.
JOINED = {"eagle": 2, "mtp": 2, "eagle3": 3, "dflash": 5}
#: Layers of a head; DFlash's published drafters for Qwen3 have five.
HEAD_LAYERS = {"eagle": 1, "eagle3": 1, "mtp": 1, "dflash": 5}


class Drafter(NamedTuple):
    """A drafter, in parameters.

    ``own_params`` are loaded in addition to the target's, ``routed_params`` of them in routed
    experts. A pass reads ``body_params`` and ``head_params``; a token is multiplied with
    ``active_params`` of the body. ``kv_dims`` is the elements of KV per token in all layers.
    """

    own_params: int
    body_params: int
    head_params: int
    active_params: int
    kv_dims: int
    num_layers: int
    routed_params: int = 0


def own_model(spec: SpeculativeConfig) -> ModelSpec | None:
    """Return the model of a drafter with its own config file; None for heads known by method.

    Raises
    ------
    ValueError
        For a draft model that the catalogue does not have, and a file that cannot be used.
    """
    if spec.model is None or spec.method == "mtp":
        return None
    if spec.method == "draft_model" or is_config_path(spec.model):
        return get_model(spec.model)
    return None


def drafter_of(model: ModelSpec, spec: SpeculativeConfig) -> Drafter:
    """Return the drafter of a target model.

    Raises
    ------
    ValueError
        For a draft model that the catalogue does not have.
    """
    if spec.method == "draft_model":
        return _whole(get_model(str(spec.model)))
    if (alone := own_model(spec)) is not None:
        return _head(model, spec, alone)
    layer = model.layers[-1]
    layers = HEAD_LAYERS[spec.method]
    if spec.method == "mtp":
        layers = spec.mtp_modules
    joined = JOINED[spec.method] * model.hidden_size * model.hidden_size
    if spec.method == "mtp":  # each module has its own, and norms of both inputs and the output
        joined = layers * (joined + 3 * model.hidden_size)
    attention = model.num_attention_params(layer) + model.norms_per_layer * model.hidden_size
    if spec.method == "eagle3":  # its layer also reads the embedding
        attention += model.hidden_size * model.head_dim * (model.num_heads + 2 * model.num_kv_heads)
    mlp, active_mlp = _mlp(model, experts=spec.method == "mtp")
    vocab = EAGLE3_VOCAB if spec.method == "eagle3" else model.vocab_size
    head = vocab * model.hidden_size
    body = joined + layers * (attention + mlp)
    own = body + (head if spec.method == "eagle3" else 0)  # others share the target's head
    kv_dims = layers * layer.num_kv_heads * layer.head_dim * layer.num_vectors
    routed = model.num_experts * model.num_expert_params if spec.method == "mtp" else 0
    active = joined + layers * (attention + active_mlp)
    return Drafter(own, body, head, active, kv_dims, layers, layers * routed)


def _head(model: ModelSpec, spec: SpeculativeConfig, own: ModelSpec) -> Drafter:
    """Return a head with its own config file; it shares the target's embedding and LM head."""
    joined = JOINED[spec.method] * model.hidden_size * own.hidden_size
    whole = _whole(own)
    head = whole.head_params
    if spec.method == "eagle3":  # its layer also reads the embedding
        joined += own.hidden_size * own.head_dim * (own.num_heads + 2 * own.num_kv_heads)
        head = EAGLE3_VOCAB * own.hidden_size
    body = joined + whole.body_params
    return whole._replace(
        own_params=body + (head if spec.method == "eagle3" else 0),
        body_params=body,
        head_params=head,
        active_params=joined + whole.active_params,
    )


def _whole(model: ModelSpec) -> Drafter:
    """Return the drafter for a separate draft model."""
    head = model.vocab_size * model.hidden_size
    body = model.num_params - model.num_embedding_params - model.num_lm_head_params
    kv_dims = sum(la.num_kv_heads * la.head_dim * la.num_vectors for la in model.layers)
    return Drafter(
        model.num_params, body, head, model.num_active_params - head, kv_dims, model.num_layers
    )


def _mlp(model: ModelSpec, *, experts: bool) -> tuple[int, int]:
    """Return the parameters of a head's MLP: all, and those that one token uses."""
    if experts and model.is_moe:
        shared = model.num_shared_experts * model.num_shared_expert_params
        shared += model.num_router_params + model.num_latent_params
        routed = model.num_experts * model.num_expert_params
        return shared + routed, shared + model.num_experts_per_token * model.num_expert_params
    width = 3 * model.hidden_size * model.intermediate_size
    return width, width


# -- memory ---------------------------------------------------------------------------------------


def drafter_bytes(
    model: ModelSpec,
    spec: SpeculativeConfig,
    *,
    dtype: str = "bf16",
    quantization: str | None = None,
    tensor_parallel_size: int = 1,
    expert_replicas: int = 1,
) -> int:
    """Bytes of the drafter's weights on one GPU, in addition to the target's; 0 if it has none.

    The name of a draft model determines its format. An MTP module, part of the target's checkpoint,
    has the target's format unless that is MXFP4; then it has ``dtype``, as other heads do.
    Data-parallel replicas share the routed experts of an MTP module as they share the target's.

    Raises
    ------
    ValueError
        For a draft model that the catalogue does not have.
    """
    if not spec.has_drafter:
        return 0
    if spec.method == "draft_model":
        draft = get_model(str(spec.model))
        return weight_bytes(
            draft,
            dtype=dtype,
            quantization=draft.quantization,
            tensor_parallel_size=tensor_parallel_size,
        )
    element: float = DTYPE_BYTES[dtype]
    if spec.method == "mtp" and quantization not in (None, "mxfp4"):
        element = QUANTIZED_BYTES[str(quantization)]
    drafter = drafter_of(model, spec)
    params = drafter.own_params - drafter.routed_params * (1 - 1 / expert_replicas)
    return int(params * element / tensor_parallel_size)


def with_drafter(
    layout: KVLayout,
    model: ModelSpec,
    spec: SpeculativeConfig | None,
    *,
    tensor_parallel_size: int = 1,
) -> KVLayout:
    """Return a layout with the drafter's layers after the target's, with KV in the same dtype.

    A drafter with its own config file has the layers of that file, windows included. Other heads
    have layers like the target's last attention layer, but with full attention. Under context
    parallelism an MTP module is divided as its target is; other drafters are copied to each rank.

    Raises
    ------
    ValueError
        For a draft model that the catalogue does not have.
    """
    if spec is None or not spec.has_drafter:
        return layout
    if (draft := own_model(spec)) is not None:
        own = kv_layout(draft, layout.dtype, tensor_parallel_size=tensor_parallel_size)
        added, scales = own.layers, own.scale_bytes_per_token
    else:
        last = model.layers[-1]._replace(kind="full", window=None)
        kv, scale = attention_on_rank(last, layout.dtype, tensor_parallel_size)
        count = drafter_of(model, spec).num_layers
        added, scales = (kv,) * count, scale * count
    return replace(
        layout,
        layers=layout.layers
        + tuple(layer._replace(is_draft=True, is_copied=spec.method != "mtp") for layer in added),
        scale_bytes_per_token=layout.scale_bytes_per_token + scales,
    )
