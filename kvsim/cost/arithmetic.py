"""Number format in which a card's GEMMs compute, and its peak rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.catalog.spec import GpuSpec


def arithmetic_of(gpu: GpuSpec, quantization: str | None) -> str:
    """Return the number format of GEMMs: that of the weights if the card has such arithmetic.

    Experts in MXFP4 compute in FP8 on cards with 4-bit units (MXFP8 activations, as in vLLM on
    Blackwell). Other 4-bit formats are for weights only, and compute in 16 bits.
    """
    if quantization == "nvfp4" and gpu.fp4_flops_per_s:
        return "fp4"
    if quantization == "mxfp4" and gpu.fp4_flops_per_s and gpu.fp8_flops_per_s:
        return "fp8"
    if quantization in ("fp8", "fp8-block") and gpu.fp8_flops_per_s:
        return "fp8"
    if quantization == "int8" and gpu.int8_ops_per_s:
        return "int8"
    return "16-bit"


def peak_flops(gpu: GpuSpec, quantization: str | None) -> float:
    """Return the peak rate of the GEMMs, in operations per second."""
    rates = {
        "fp4": gpu.fp4_flops_per_s,
        "fp8": gpu.fp8_flops_per_s,
        "int8": gpu.int8_ops_per_s,
        "16-bit": gpu.bf16_flops_per_s,
    }
    return rates[arithmetic_of(gpu, quantization)]
