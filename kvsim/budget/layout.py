"""Bytes of KV per token, by layer, dtype and rank."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.budget.compressed import compressed_layers
from kvsim.budget.layer import SCALED, LayerKV
from kvsim.catalog.state import StateLayer
from kvsim.errors import unknown_name

if TYPE_CHECKING:
    from kvsim.catalog.spec import AttentionLayer, ModelSpec


class KVDtype(NamedTuple):
    """A storage format of K and V.

    ``bits`` per element; ``scale_bytes`` per token, head and vector (K and V each have their own).
    """

    name: str
    bits: int
    scale_bytes: int


#: fp8 has one scale per tensor, as in vLLM, so it halves bf16 exactly. int8 has one FP32 scale per
#: token and head (as in vLLM's per-token-head mode); int4 an FP16 scale and zero point (as KIVI,
#: arXiv 2402.02750, with one group per head).
KV_DTYPES = {
    d.name: d
    for d in (
        KVDtype("fp32", 32, 0),
        KVDtype("bf16", 16, 0),
        KVDtype("fp16", 16, 0),
        KVDtype("fp8", 8, 0),
        KVDtype("int8", 8, 4),
        KVDtype("int4", 4, 4),
    )
}

#: vLLM's and PyTorch's spellings.
DTYPE_ALIASES = {
    "float32": "fp32",
    "float": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "int8_per_token_head": "int8",
}

#: A KV dtype of vLLM 0.33 that is not modelled: the bytes of its scales and padding are not known.
NVFP4 = "nvfp4"


def kv_dtype(name: str, *, model_dtype: str = "bf16") -> KVDtype:
    """Return a KV dtype by kvsim's or vLLM's name; ``auto`` is the model's.

    Raises
    ------
    ValueError
        For dtypes that are unknown or not modelled, naming the allowed dtypes.
    """
    wanted = model_dtype if name == "auto" else name
    wanted = DTYPE_ALIASES.get(wanted.lower(), wanted.lower())
    if wanted == NVFP4:
        allowed = ", ".join(["auto", *KV_DTYPES])
        raise ValueError(
            f"KV cache dtype {name!r}: the slot sizes of NVFP4 KV are not modelled (allowed: "
            f"{allowed})"
        )
    if wanted not in KV_DTYPES:
        raise unknown_name("KV cache dtype", name, ["auto", *KV_DTYPES, *DTYPE_ALIASES])
    return KV_DTYPES[wanted]


#: Elements to which vLLM before 0.7.1 padded MLA's keys and values, since it had no kernels for
#: latents (``DeepseekV2Attention``).
PADDED_DIM = 256

#: Elements of the rotary part of a latent (DeepSeek-V2, arXiv 2405.04434).
ROTARY_DIM = 64


@dataclass(frozen=True)
class KVLayout:
    """KV of the layers that one GPU holds."""

    layers: tuple[LayerKV, ...]
    dtype: KVDtype
    scale_bytes_per_token: int
    kv_lora_rank: int = 0  # rank of a latent that only a what-if gives the model
    compressed: bool = False

    @cached_property
    def bytes_per_token(self) -> int:
        """Bytes of one token on one GPU, over all layers, scales included.

        With compressed tokens, windows do not count: most tokens have left them.
        """
        counted = [v for v in self.layers if not (self.compressed and v.window)]
        return int(sum(Fraction(v.bytes_per_token, v.tokens_per_slot) for v in counted))

    @property
    def keeps_latent(self) -> bool:
        """Return True if attention reads latents, not keys and values."""
        return any(layer.num_tensors == 1 and not layer.is_index for layer in self.layers)

    @property
    def rolling_window(self) -> int | None:
        """Longest window of the layers, tokens; None if one has no window, so no rolling buffer."""
        windows = [layer.window for layer in self.layers]
        return None if None in windows else max(w for w in windows if w is not None)


def with_attention(
    layer: AttentionLayer,
    *,
    num_kv_heads: int | None,
    window: int | None,
    head_dim: int,
    kv_lora_rank: int | None = None,
) -> AttentionLayer:
    """Return a layer changed to other KV heads (GQA, MQA), a latent, or a sliding window.

    ``num_kv_heads`` replaces MLA's latent by keys and values of ``head_dim`` elements.
    """
    if num_kv_heads is not None:
        dim = layer.head_dim if layer.num_vectors == 2 else head_dim
        layer = layer._replace(num_kv_heads=num_kv_heads, num_vectors=2, head_dim=dim)
    if kv_lora_rank is not None:
        layer = layer._replace(num_kv_heads=1, num_vectors=1, head_dim=kv_lora_rank + ROTARY_DIM)
    if window is not None:
        layer = layer._replace(kind="sliding", window=window)
    return layer


def attention_on_rank(
    layer: AttentionLayer, dtype: KVDtype, tensor_parallel_size: int
) -> tuple[LayerKV, int]:
    """Return an attention layer's KV on one rank, and its bytes of scales per token."""
    heads = layer.num_kv_heads
    if layer.num_vectors == 2:  # MLA's latent is replicated on every rank
        heads = heads_per_rank(heads, tensor_parallel_size)
    vectors = layer.num_vectors * heads
    scale = vectors * dtype.scale_bytes
    payload = vectors * layer.head_dim * dtype.bits // 8
    return LayerKV(layer.kind, layer.window, payload + scale, layer.num_vectors), scale


def state_on_rank(
    state: StateLayer,
    *,
    tensor_parallel_size: int,
    model_dtype: str = "bf16",
    state_dtype: str | None = None,
    conv_dtype: str | None = None,
    num_speculative_tokens: int = 0,
) -> LayerKV:
    """Return a layer's state on one rank.

    ``state_dtype`` is the requested type, which Kimi delta attention ignores. The convolution's
    window has the type of the weights, unless ``conv_dtype`` names another; drafts widen some
    windows.
    """
    kept = state.dtype if state.form == "kda" else state_dtype or state.dtype
    size = state.num_bytes(
        KV_DTYPES[kept or model_dtype].bits // 8,
        KV_DTYPES[conv_dtype or model_dtype].bits // 8,
        tensor_parallel_size=tensor_parallel_size,
        num_speculative_tokens=num_speculative_tokens,
    )
    return LayerKV("mamba", None, 0, 1, size)


def sparse_on_rank(
    model: ModelSpec, kv: LayerKV, scale: int, dtype: KVDtype
) -> tuple[LayerKV, int]:
    """Return the KV of sparse MLA as vLLM stores it in FP8, and its bytes of scales per token.

    DeepSeek-V3.2 has 656 bytes per token. Other KV and its scales are returned unchanged.
    """
    if dtype.name != "fp8" or not model.is_mla or not model.index_head_dim:
        return kv, scale
    scales = 4 * (model.kv_lora_rank // SCALED)
    return kv._replace(
        bytes_per_token=model.kv_lora_rank + scales + 2 * model.qk_rope_head_dim
    ), scales


def index_on_rank(model: ModelSpec, dtype: KVDtype) -> tuple[LayerKV, int]:
    """Return an indexer's KV on every rank, and its bytes of scales per token.

    In latent attention a key is FP8 with scales under every KV dtype (132 bytes for 128
    elements in DeepSeek-V3.2). In other attention a key has the KV dtype.
    """
    dim = model.index_head_dim
    scales = 4 * (dim // SCALED) if model.is_mla else 0
    payload = dim if model.is_mla else dim * dtype.bits // 8
    return LayerKV("full", None, payload + scales, 1, is_index=True), scales


def heads_per_rank(num_kv_heads: int, tensor_parallel_size: int) -> int:
    """KV heads on one rank: the heads are split over the ranks, or copied if ranks outnumber them.

    Raises
    ------
    ValueError
        If neither number divides the other.
    """
    tp = tensor_parallel_size
    if num_kv_heads % tp and tp % num_kv_heads:
        raise ValueError(
            f"{num_kv_heads} KV heads cannot be divided over tensor_parallel_size {tp}, "
            "which must be a divisor or a multiple of them"
        )
    return max(1, num_kv_heads // tp)


def _check_shape(model: ModelSpec, num_stages: int, num_kv_heads: int | None) -> None:
    if num_stages > model.num_layers:
        raise ValueError(
            f"pipeline_parallel_size {num_stages} exceeds the {model.num_layers} "
            f"layers of {model.name}"
        )
    if num_kv_heads is not None and (num_kv_heads < 1 or model.num_heads % num_kv_heads):
        raise ValueError(
            f"{num_kv_heads} KV heads: must divide the {model.num_heads} heads of {model.name}"
        )


def _reads_earlier_kv(model: ModelSpec, place: int) -> bool:
    # Places exceed the layers if a layer has both keys and a state; no such model shares KV.
    shared = model.num_kv_shared_layers
    return shared > 0 and place >= model.num_layers - shared


def _compressed_layout(
    model: ModelSpec, dtype: KVDtype, num_layers: int, *, changed: bool
) -> KVLayout:
    if changed:
        raise ValueError(f"{model.name}: compressed attention cannot be changed to another")
    return KVLayout(tuple(compressed_layers(model, dtype, num_layers)), dtype, 0, compressed=True)


def kv_layout(
    model: ModelSpec,
    dtype: KVDtype,
    *,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    num_kv_heads: int | None = None,
    window: int | None = None,
    kv_lora_rank: int | None = None,
    without_latents: bool = False,
    **state: Any,
) -> KVLayout:
    """Lay out a model's KV on one GPU (the pipeline stage with most layers).

    Parameters
    ----------
    num_kv_heads, window, kv_lora_rank
        What-if overrides of the model's attention: KV heads per layer, a sliding window in tokens
        on every layer, and the rank of a latent that replaces keys and values.
    without_latents
        Keep keys and values of every head instead of MLA's latents, as vLLM did before 0.7.1.
    **state
        Inputs of the states of Mamba and linear-attention layers, as for :func:`state_on_rank`.

    Raises
    ------
    ValueError
        If the heads do not divide over the ranks, or there are more stages than layers.
    """
    _check_shape(model, pipeline_parallel_size, num_kv_heads)
    per_stage = -(-model.num_layers // pipeline_parallel_size)
    if model.compress_ratios:
        changed = (num_kv_heads, window, kv_lora_rank) != (None, None, None)
        return _compressed_layout(model, dtype, per_stage, changed=changed)
    placed, scales = [], 0
    indexed = iter(model.indexed)
    what_if = num_kv_heads is not None or kv_lora_rank is not None
    padded = without_latents and not what_if and model.is_mla
    for place, mixer in enumerate(model.mixers_of(per_stage)):
        if mixer is None:
            continue
        if isinstance(mixer, StateLayer):
            tp = tensor_parallel_size
            placed.append(state_on_rank(mixer, tensor_parallel_size=tp, **state))
            continue
        layer = with_attention(
            mixer,
            num_kv_heads=num_kv_heads,
            window=window,
            head_dim=model.head_dim,
            kv_lora_rank=kv_lora_rank,
        )
        if padded:
            layer = layer._replace(num_kv_heads=model.num_heads, num_vectors=2, head_dim=PADDED_DIM)
        has_index = next(indexed) and not what_if
        if _reads_earlier_kv(model, place):
            continue
        kv, scale = attention_on_rank(layer, dtype, tensor_parallel_size)
        if not what_if and not padded:
            kv, scale = sparse_on_rank(model, kv, scale, dtype)
        placed.append(kv)
        scales += scale
        if has_index:
            kv, scale = index_on_rank(model, dtype)
            placed.append(kv)
            scales += scale
    return KVLayout(tuple(placed), dtype, scales, kv_lora_rank or 0)
