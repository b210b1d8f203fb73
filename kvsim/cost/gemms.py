"""The GEMMs of a model's layers by weight format: 16 bits, and a quantised format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.budget.weights import DTYPE_BYTES, QUANTIZED_BYTES, quantized_params
from kvsim.cost.arithmetic import arithmetic_of, peak_flops
from kvsim.cost.efficiency import gemm_shares
from kvsim.cost.traffic import (
    activation_bytes,
    activation_elements,
    gemm_activation_bytes,
    routed_elements,
)

if TYPE_CHECKING:
    from kvsim.cost.efficiency import Efficiency
    from kvsim.cost.model import CostConfig
    from kvsim.records.cost import Cost, Gemms


def count_gemms(record: Cost, config: CostConfig) -> None:
    """Write weights, FLOPs and activations of GEMMs, except the routed experts', into a record."""
    model, tp = config.model, config.tensor_parallel_size
    element = float(DTYPE_BYTES[config.dtype])
    body = model.num_params - model.num_embedding_params - model.num_lm_head_params
    dense = body - model.num_routed_expert_params
    narrow = quantized_params(model, config.quantization)[1]
    moved, record.logit_bytes = gemm_activation_bytes(config)
    moved -= activation_bytes(config, *routed_elements(config))
    narrower = QUANTIZED_BYTES.get(config.quantization or "", element)
    for gemms, params, size in (
        (record.wide, dense - narrow, element),
        (record.narrow, narrow, narrower),
    ):
        gemms.num_bytes = size * params / tp
        gemms.token_flops = 2.0 * params / tp
        gemms.token_bytes = moved * params / dense
    head = model.vocab_size * model.hidden_size
    record.head_bytes, record.head_flops = element * head / tp, 2.0 * head / tp


def rate_gemms(record: Cost, config: CostConfig, rate: Efficiency) -> None:
    """Write a card's rates for the GEMMs of :func:`count_gemms` into a record."""
    gpu = config.gpu
    set_rates(record.wide, config, rate, peak_flops(gpu, None))
    set_rates(record.narrow, config, rate, peak_flops(gpu, config.quantization))
    if quantizes_activations(config):
        shares = gemm_shares(rate, config.quantization)
        record.narrow.stream_rate = gpu.memory_bandwidth_bytes_per_s * shares.weights
        record.narrow.rate = peak_flops(gpu, config.quantization) * shares.gemm
        record.narrow.ridge = shares.ridge
        record.narrow.falloff = 0.0  # not measurable next to the quantisation of activations


def set_rates(gemms: Gemms, config: CostConfig, rate: Efficiency, peak: float) -> None:
    """Write the rates of kernels that compute in 16 bits, also with narrower weights."""
    gemms.stream_rate = config.gpu.memory_bandwidth_bytes_per_s * rate.weights
    gemms.rate = peak * rate.gemm
    gemms.falloff, gemms.ridge = rate.gemm_falloff / 8192, rate.gemm_ridge


def quantization_time(config: CostConfig, rate: Efficiency) -> float:
    """Seconds per token to quantise activations before the GEMMs, from 2 bytes to 1."""
    if not quantizes_activations(config):
        return 0.0
    read = activation_elements(config)[0] - routed_elements(config)[0]
    share = gemm_shares(rate, config.quantization).quantization
    return 3.0 * read / (config.gpu.memory_bandwidth_bytes_per_s * share)


def quantizes_activations(config: CostConfig) -> bool:
    """Return True if dense GEMMs compute in fewer than 16 bits, after quantising activations."""
    narrow = quantized_params(config.model, config.quantization)[1]
    return narrow > 0 and arithmetic_of(config.gpu, config.quantization) != "16-bit"
