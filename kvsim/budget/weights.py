"""Bytes of a model's weights on one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.layout import DTYPE_ALIASES
from kvsim.errors import unknown_name

if TYPE_CHECKING:
    from kvsim.catalog.spec import ModelSpec

#: Bytes per parameter of a quantised matrix, scales included: FP8 with one
#: FP32 scale per 128 x 128 (fp8-block); 4-bit with one FP16 scale and zero point per 128 (GPTQ,
#: AWQ), one 16-bit scale per 32 (int4: Kimi-K2.5), one 8-bit scale per 32 (MXFP4) or per 16
#: (NVFP4); measured on checkpoints for bitsandbytes.
QUANTIZED_BYTES = {
    "fp8": 1.0,
    "fp8-block": 1.0 + 4 / 128**2,
    "fp8-mxfp4": 1.0 + 1 / 128**2,
    "int8": 1.0,
    "awq": 0.5195,
    "gptq": 0.5195,
    "bitsandbytes": 0.53,
    "mxfp4": 0.531,
    "nvfp4": 0.5 + 1 / 16,
    "int4": 0.5 + 2 / 32,
}

#: Parts that a format quantises if not all, unless the model names other parts: gpt-oss, and
#: DeepSeek-V4, whose experts are in MXFP4 and whose other linear layers in FP8.
FORMAT_PARTS = {
    "mxfp4": ["experts"],
    "fp8-mxfp4": ["experts", "shared_experts", "attention", "output"],
}
#: Formats of routed experts that differ from the rest.
EXPERT_FORMATS = {"fp8-mxfp4": "mxfp4"}

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def weight_dtype(name: str) -> str:
    """Return kvsim's name of a 16- or 32-bit dtype; ``auto`` is bf16."""
    wanted = "bf16" if name == "auto" else DTYPE_ALIASES.get(name.lower(), name.lower())
    if wanted not in DTYPE_BYTES:
        raise unknown_name("dtype", name, ["auto", "float16", "bfloat16", "float32", *DTYPE_BYTES])
    return wanted


def check_quantization(name: str | None) -> None:
    """Raise ValueError for an unknown quantisation, and name the known ones."""
    if name is not None and name not in QUANTIZED_BYTES:
        raise unknown_name("quantization", name, QUANTIZED_BYTES)


def part_params(model: ModelSpec) -> dict[str, int]:
    """Return the parameters of each part that may be quantised: all but embedding and LM head."""
    routed, layers = model.num_routed_expert_params, model.num_moe_layers
    body = model.num_params - model.num_embedding_params - model.num_lm_head_params
    shared = model.num_shared_experts * model.num_shared_expert_params
    attention = sum(model.num_attention_params(layer) for layer in model.layers)
    state, state_output = 0, 0
    if model.state is not None:
        state = model.state.num_params(model.hidden_size)
        state_output = model.state.width * model.hidden_size
    found = {
        "experts": routed,
        "shared_experts": layers * (shared + model.num_latent_params),
        "attention": attention,
        "output": sum(model.num_output_params(layer) for layer in model.layers),
        "state": (state - state_output) * model.num_state_layers,
        "state_output": state_output * model.num_state_layers,
        "mlp": model.num_dense_mlp_params,
    }
    found["attention"] -= found["output"]
    return found | {"rest": body - sum(found.values())}


def named_parts(model: ModelSpec, quantization: str) -> list[str]:
    """Return the parts that a format quantises: those that the model names, or the format's own."""
    formats = [part.partition(":")[::2] for part in model.quantized_parts]
    named = [part for name, part in formats if name == quantization]
    if named:
        return named
    return FORMAT_PARTS.get(quantization) or [*part_params(model)]


def expert_bytes(quantization: str) -> float:
    """Return the bytes per parameter of quantised routed experts."""
    return QUANTIZED_BYTES[EXPERT_FORMATS.get(quantization, quantization)]


def quantized_params(model: ModelSpec, quantization: str | None) -> tuple[int, int]:
    """Return the quantised parameters in routed experts, and in all other parts."""
    if quantization is None:
        return 0, 0
    params, parts = part_params(model), named_parts(model, quantization)
    others = sum(params[part] for part in parts if part != "experts")
    return (params["experts"] if "experts" in parts else 0), others


def num_end_params(model: ModelSpec, num_stages: int, *, towers: bool) -> int:
    """Return the parameters of a stage outside its layers: embedding, LM head and towers."""
    padded = -(-model.vocab_size // 64) * 64 - model.vocab_size
    embedding = model.num_embedding_params + padded * model.hidden_size
    head = 0
    if not model.tie_word_embeddings:
        head = model.num_lm_head_params + padded * model.hidden_size
    ends = embedding + head if num_stages == 1 else max(embedding, head)
    return ends + model.num_tower_params if towers else ends


def routed_bytes_of(model: ModelSpec, dtype: str, quantization: str | None) -> float:
    """Return the bytes of the routed experts of all layers, unpadded and not split."""
    found = float(model.num_routed_expert_params * DTYPE_BYTES[dtype])
    if quantization is not None:
        narrower = expert_bytes(quantization) - DTYPE_BYTES[dtype]
        found += quantized_params(model, quantization)[0] * narrower
    return found


def expert_share(model: ModelSpec, num_slices: int, *, expert_parallel_size: int | None) -> float:
    """Return one GPU's share of a layer's routed experts, held as whole experts or as slices."""
    if expert_parallel_size is None or not model.is_moe:
        return 1 / num_slices
    return -(-model.num_experts // expert_parallel_size) / model.num_experts


def weight_bytes(
    model: ModelSpec,
    *,
    dtype: str = "bf16",
    quantization: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    expert_parallel_size: int | None = None,
    expert_replicas: int = 1,
    expert_padding: float = 1.0,
    towers: bool = True,
) -> int:
    """Return the bytes of weights on one GPU, in the largest pipeline stage.

    That stage has the most layers, and embedding or LM head. Both stay in ``dtype``, as do towers,
    small parameters, and parts that the format does not quantise. The vocabulary is padded to a
    multiple of 64, as in vLLM. Copied heads, norms and routers, all small, are counted as split.
    ``expert_parallel_size`` ranks hold whole experts, and the first ranks up to one expert more;
    with None each expert is split over the tensor-parallel ranks of ``expert_replicas`` replicas.
    ``expert_padding`` is the padded size of routed experts over their size.
    """
    element = DTYPE_BYTES[dtype]
    body = model.num_params - model.num_embedding_params - model.num_lm_head_params
    body_bytes = float(body * element)
    routed_bytes = routed_bytes_of(model, dtype, quantization)
    if quantization is not None:
        routed, others = quantized_params(model, quantization)
        body_bytes += routed * (expert_bytes(quantization) - element)
        body_bytes += others * (QUANTIZED_BYTES[quantization] - element)
    stages = pipeline_parallel_size
    share = -(-model.num_layers // stages) / model.num_layers
    ends = num_end_params(model, stages, towers=towers)
    if not model.is_moe:
        return int((body_bytes * share + ends * element) / tensor_parallel_size)
    experts = expert_share(
        model, tensor_parallel_size * expert_replicas, expert_parallel_size=expert_parallel_size
    )
    others_bytes = (body_bytes - routed_bytes) * share + ends * element
    return int(
        others_bytes / tensor_parallel_size + routed_bytes * share * experts * expert_padding
    )
