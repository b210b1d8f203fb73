"""Fractions of a card's peaks that each kind of work reaches: the only constants of the roofline.

``efficiency.toml`` holds them with the error of each fit; ``python -m experiments.calibrate`` makes
them. A card without measurements takes the fractions of its generation's measured card, else the
H100's, applied to its own peaks and scaled where simple tests of it or of its maker's were timed
(:mod:`kvsim.cost.relative`).
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from math import inf
from pathlib import Path
from typing import Any

from kvsim.cost.relative import ratios_of, scaled, spread, tested
from kvsim.errors import unknown_name

TABLE = Path(__file__).with_name("efficiency.toml")
#: The card that provides the fractions of a card without measurements.
DEFAULT = "h100"
#: Measured card of the same generation, by card.
NEAREST = {
    **{"gb200": "b200", "b300": "b200", "gb300": "b200"},
    **{"l4": "l40s", "rtx-5090": "rtx-pro-6000"},
}


@dataclass(frozen=True)
class GemmShares:
    """Efficiencies of GEMMs that compute in fewer bits than 16.

    Parameters
    ----------
    launch : seconds per GEMM, quantising its activations included
    weights, gemm : shares of HBM bandwidth and of peak FLOP/s
    ridge : share of the shorter of memory and arithmetic time that is not hidden if both are equal
    quantization : share of HBM bandwidth, reading activations and writing them in fewer bits
    """

    launch: float
    weights: float
    gemm: float
    ridge: float
    quantization: float


@dataclass(frozen=True)
class ExpertShares:
    """Efficiencies of the routed experts of one weight format.

    Parameters
    ----------
    launch : seconds per layer: routing, permutation, two grouped GEMMs, combining
    weights, gemm : shares of HBM bandwidth and of peak FLOP/s
    power : power of the soft maximum of the two
    block : approximate number of rows that each touched expert's rows are padded to
    activations : share of HBM bandwidth, moving rows
    uncaptured : least time of a layer beyond ``uncaptured_experts``, in steps that no CUDA graph
        covers
    """

    launch: float
    weights: float
    gemm: float
    power: float
    block: float
    activations: float
    uncaptured: float = 0.0


@dataclass(frozen=True)
class Efficiency:
    """Achieved shares of peak rates, and fixed times in seconds.

    Parameters
    ----------
    weights : share of HBM bandwidth, streaming weights through GEMMs
    gemm : share of peak FLOP/s, large GEMMs
    gemm_falloff : relative slowdown of GEMMs of 8,192 tokens
    gemm_ridge : share of the shorter of memory and arithmetic time not hidden if both are equal
    gemm_launch : per GEMM
    decode_attention : share of HBM bandwidth, reading KV for one query token per request
    decode_launch, decode_request : per layer, and per layer, request and 32 heads
    prefill_attention : share of peak FLOP/s
    prefill_launch : per layer
    ..._8bit : the same six with KV of one byte or less, which takes converting: half the bytes are
        not half the time (FP8 measured; INT8 and INT4 taken as equal)
    prefill_io : share of HBM bandwidth, reading and writing queries, keys, values and outputs
    mixed_decode : slowdown of decodes' KV reads with a long prompt in the same step
    elementwise : share of HBM bandwidth, norms, rotary embedding, activation
    link, link_ring : share of one direction of NVLink or PCIe, all-reduces in one and two exchanges
    layer_launch : other kernel launches, per layer and step
    layer_launch_quantized : more of them where dense GEMMs quantise activations first
    latent_attention : share of HBM bandwidth, reading latents for one query token per request
    latent_prefill : share of peak FLOP/s, prompts of models with latents
    state_traffic : share of HBM bandwidth, reading and writing states
    state_launch, scan_launch : per layer with states, of decodes and of prompts
    scan : share of peak FLOP/s, the scan of a prompt
    scan_token : seconds per token and layer at least, as tokens follow each other
    uncaptured_layer, uncaptured_experts : least time of a layer, and more of one with experts, in
        steps that no CUDA graph covers: the host launches every kernel
    step, request : host work between steps, per step and per scheduled request
    sync_step, sync_request : host work besides, where the GPU waits for it
    all_reduce, all_reduce_exchange : fixed time of one all-reduce, and of a second exchange in it
    gemms, experts : efficiencies by weight format
    errors : error of each fit, in words
    """

    weights: float
    gemm: float
    gemm_falloff: float
    gemm_ridge: float
    gemm_launch: float
    decode_attention: float
    decode_launch: float
    decode_request: float
    prefill_attention: float
    prefill_launch: float
    prefill_io: float
    decode_attention_8bit: float
    decode_launch_8bit: float
    decode_request_8bit: float
    prefill_attention_8bit: float
    prefill_launch_8bit: float
    prefill_io_8bit: float
    mixed_decode: float
    elementwise: float
    link: float
    link_ring: float
    layer_launch: float
    step: float
    request: float
    sync_step: float
    sync_request: float
    all_reduce: float
    all_reduce_exchange: float
    layer_launch_quantized: float
    latent_attention: float
    latent_prefill: float
    state_traffic: float
    state_launch: float
    scan_launch: float
    scan: float
    scan_token: float
    uncaptured_layer: float
    uncaptured_experts: float
    gemms: dict[str, GemmShares] = field(default_factory=dict)
    experts: dict[str, ExpertShares] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)


#: Formats of weights that have constants of their own.
FORMATS = {
    "gemms": ("fp8", "fp8-block", "nvfp4"),
    "experts": ("16-bit", "fp8-block", "nvfp4", "mxfp4", "int4"),
}
#: Tables of a card by format of weights.
NESTED: dict[str, Any] = {"gemms": GemmShares, "experts": ExpertShares}


def read_table(file: Path = TABLE) -> dict[str, dict[str, Any]]:
    """Read the constants of all cards.

    Raises
    ------
    ValueError
        If the file cannot be read or is not TOML of tables.
    """
    try:
        return _parsed(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"constants {file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"constants {file}: not TOML: no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"constants {file}: not TOML: {error}") from None


@lru_cache(maxsize=8)
def _parsed(text: str) -> dict[str, dict[str, Any]]:
    """Parse a table once, since every run reads it several times."""
    return tomllib.loads(text)


def hash_alias_of(gpu_name: str) -> str:
    """Return the key of a GPU's constants in the table: h100 for h100-sxm."""
    known = [c for c in (*read_table(), *NEAREST) if f"{gpu_name}-".startswith(f"{c}-")]
    return max(known, key=len, default=gpu_name.partition("-")[0])


def basis_of(gpu_name: str) -> str:
    """Return a text on the source of a card's constants."""
    card = measured_card(gpu_name)
    errors = read_table()[card].get("errors")
    own = hash_alias_of(gpu_name)
    if card != own:
        simple = "" if ratios_of(own) is None else f", scaled by simple tests of {tested(own)}"
        return (
            f"no kernels of {gpu_name} were measured: the {card.upper()}'s fractions of its peaks"
            f"{simple}; {spread()}"
        )
    if errors is None:
        return f"declared for the {card}, without measured kernels"
    fits = "; ".join(f"{kind}: {error}" for kind, error in errors.items())
    return f"fitted on kernels of the {hash_alias_of(gpu_name)} ({fits})"


def measured_narrow_kv(gpu_name: str, kv_dtype: str) -> bool:
    """Return True if attention over this KV dtype was measured on this card: only FP8 on H100."""
    errors = read_table().get(hash_alias_of(gpu_name), {}).get("errors", {})
    return any(f"{kv_dtype.upper()} KV" in kind for kind in errors)


def with_narrow_kv(rate: Efficiency) -> Efficiency:
    """Return the constants with those for KV of one byte or less in place of 16-bit KV."""
    narrow = [f.name for f in fields(Efficiency) if f.name.endswith("_8bit")]
    values: dict[str, Any] = {n.removesuffix("_8bit"): getattr(rate, n) for n in narrow}
    return replace(rate, **values)


def gemm_shares(rate: Efficiency, quantization: str | None) -> GemmShares:
    """Return a card's constants of GEMMs in fewer bits; FP8's for formats that were not timed."""
    return rate.gemms.get(quantization or "") or rate.gemms["fp8"]


@cache
def efficiency_of(gpu_name: str) -> Efficiency:
    """Return the constants of a card."""
    table = read_table()
    given, default = table[measured_card(gpu_name)], table[DEFAULT]
    values: dict[str, Any] = dict(given)
    for name, kind in NESTED.items():
        formats = default[name] | given.get(name, {})
        values[name] = {key: kind(**shares) for key, shares in formats.items()}
    ratios = ratios_of(hash_alias_of(gpu_name))
    return Efficiency(**values) if ratios is None else scaled(Efficiency(**values), ratios)


def measured_card(gpu_name: str) -> str:
    """Return the card that provides a card's fractions: itself, its generation's, or the H100."""
    card = hash_alias_of(gpu_name)
    card = NEAREST.get(card, card)
    return card if card in read_table() else DEFAULT


def with_constants_of(file: str, efficiency: Efficiency, gpu_name: str) -> Efficiency:
    """Replace constants by those of a user's TOML file for this card.

    The file has the form of ``efficiency.toml``; constants that it omits keep their values.

    Raises
    ------
    ValueError
        If the file has no table of the card, or a constant is unknown or not a number above 0.
    """
    table, card = read_table(Path(file)), hash_alias_of(gpu_name)
    given = table.get(gpu_name, table.get(card))
    if not isinstance(given, dict):
        raise ValueError(f"constants {file}: has no table [{card}]")
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name in NESTED:
            own: dict[str, Any] = dict(getattr(efficiency, name))
            for key, shares in _table_of(file, name, value).items():
                if key not in FORMATS[name]:
                    raise unknown_name(f"format of {name} in {file}", key, FORMATS[name])
                known = own.get(key) or next(iter(own.values()))
                own[key] = replace(known, **_numbers(file, f"{name}.{key}", shares, known))
            changes[name] = own
    flat = {n: v for n, v in given.items() if n not in NESTED and n != "errors"}
    return replace(efficiency, **changes | _numbers(file, "", flat, efficiency))


def _table_of(file: str, name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"constants {file}: {name} must be a table by format of weights")
    return value


def _numbers(file: str, table: str, given: Any, known: Any) -> dict[str, float]:
    """Check the constants of one table."""
    names = [f.name for f in fields(known) if f.name not in (*NESTED, "errors")]
    for name, value in _table_of(file, table, given).items():
        if name not in names:
            raise unknown_name(f"constant in {file}", name, names)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise ValueError(f"constants {file}: {name} must be a number above 0, not {value!r}")
    return {name: float(value) for name, value in given.items()}
