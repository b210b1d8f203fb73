"""How much of a card's peak each kind of work reaches. The only constants of the roofline.

Fitted on kernel times of aiconfigurator-core 0.12.0 (GEMM and attention under vLLM, CUDA-graph
timing) on H100 and A100; overheads on one lightly loaded run of vLLM 0.23 on an H100. Cards without
measurements take the H100's fractions of their own peaks, which put an RTX 4090 within 11 % of
measured end-to-end times.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Efficiency:
    """Achieved shares of peak rates, and fixed times in seconds.

    Parameters
    ----------
    weights : of HBM bandwidth, streaming weights through GEMMs
    gemm : of peak FLOP/s, large GEMMs
    decode_attention : of HBM bandwidth, reading KV for one query token per request
    prefill_attention : of peak FLOP/s
    link : of one direction of NVLink (or PCIe), all-reduce
    layer_launch : kernel launches, per layer and step
    step, request : host work between steps, per step and per scheduled request
    all_reduce : fixed time of one all-reduce
    """

    weights: float = 0.85
    gemm: float = 0.82
    decode_attention: float = 0.83
    prefill_attention: float = 0.685
    link: float = 0.70
    layer_launch: float = 8e-6
    step: float = 1e-4
    request: float = 5e-6
    all_reduce: float = 8e-6


#: By prefix of the GPU's name; the empty prefix is every other card.
EFFICIENCIES = {
    "a100": Efficiency(weights=0.84, gemm=0.74, decode_attention=0.72),
    "": Efficiency(),
}


def efficiency_of(gpu_name: str) -> Efficiency:
    """Return the constants of a card."""
    return next(e for prefix, e in EFFICIENCIES.items() if gpu_name.startswith(prefix))
