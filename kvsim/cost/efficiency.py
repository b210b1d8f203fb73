"""How much of a card's peaks each kind of work reaches. The only constants of the roofline.

They stand in ``efficiency.toml`` with the error of each fit; ``python -m experiments.calibrate``
makes them. Cards without measurements take the H100's fractions of their own peaks, which put an
RTX 4090 within 6 % of measured end-to-end times, and an RTX PRO 6000 within 17 %.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("efficiency.toml")
#: Whose fractions a card without measurements takes.
DEFAULT = "h100"


@dataclass(frozen=True)
class Efficiency:
    """Achieved shares of peak rates, and fixed times in seconds.

    Parameters
    ----------
    weights : of HBM bandwidth, streaming weights through GEMMs
    gemm : of peak FLOP/s, large GEMMs
    gemm_falloff : by how much GEMMs of 8,192 tokens are slower than that
    gemm_launch : per GEMM
    decode_attention : of HBM bandwidth, reading KV for one query token per request
    decode_launch, decode_request : per layer, and per layer, request and 32 heads
    prefill_attention : of peak FLOP/s
    prefill_launch : per layer
    prefill_io : of HBM bandwidth, reading and writing queries, keys, values and outputs
    mixed_decode : by how much decodes read KV slower beside a long prompt in the same step
    elementwise : of HBM bandwidth, norms, rotary embedding, activation
    link : of one direction of NVLink (or PCIe), all-reduce
    layer_launch : other kernel launches, per layer and step
    step, request : host work between steps, per step and per scheduled request
    all_reduce : fixed time of one all-reduce
    errors : of each fit, in words
    """

    weights: float
    gemm: float
    gemm_falloff: float
    gemm_launch: float
    decode_attention: float
    decode_launch: float
    decode_request: float
    prefill_attention: float
    prefill_launch: float
    prefill_io: float
    mixed_decode: float
    elementwise: float
    link: float
    layer_launch: float
    step: float
    request: float
    all_reduce: float
    errors: dict[str, str] = field(default_factory=dict)


def read_table() -> dict[str, dict[str, Any]]:
    """Read the constants of all cards."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))


def basis_of(gpu_name: str) -> str:
    """Say what a card's constants rest on, and what error to expect of latencies."""
    card = gpu_name.partition("-")[0]
    errors = read_table().get(card, {}).get("errors")
    if errors is None:
        return (
            f"no measurements of {gpu_name}: the H100's fractions of its peaks; expect mean "
            "latencies within 5 to 17 %"
        )
    fits = "; ".join(f"{kind}: {error}" for kind, error in errors.items())
    return f"fitted on kernels of the {card} ({fits}); expect mean latencies within 5 % unsaturated"


@cache
def efficiency_of(gpu_name: str) -> Efficiency:
    """Return the constants of a card."""
    table = read_table()
    card = gpu_name.partition("-")[0]
    return Efficiency(**table.get(card, table[DEFAULT]))
