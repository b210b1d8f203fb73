"""Fractions of a card's peaks that each kind of work reaches: the only constants of the roofline.

``efficiency.toml`` holds them with the error of each fit, as ``python -m experiments.calibrate``
writes it. A card without measurements takes the fractions of the measured card of its generation,
or else of the H100, and applies them to its own peaks. If simple tests of the card, or of one of
the same maker, were timed, their ratios scale the fractions (:mod:`kvsim.cost.relative`).
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
#: The card with the fractions for cards without measurements and without an entry below.
DEFAULT = "h100"
#: By card without measurements: the measured card of its generation.
NEAREST = {
    **{"gb200": "b200", "b300": "b200", "gb300": "b200"},
    **{"l4": "l40s", "rtx-5090": "rtx-pro-6000"},
}


@dataclass(frozen=True)
class GemmShares:
    """Efficiencies of GEMMs that compute in fewer bits than 16.

    Parameters
    ----------
    launch : seconds per GEMM, including the launch that quantises its activations
    weights, gemm : shares of HBM bandwidth and of peak FLOP/s
    ridge : share of memory or arithmetic time that does not overlap if both are equal
    quantization : share of HBM bandwidth when activations are read and written in fewer bits
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
    power : exponent of the soft maximum of memory time and arithmetic time
    block : approximate rows of padding per expert in use
    activations : share of HBM bandwidth when rows are moved
    uncaptured : seconds added to ``uncaptured_experts``, the least time of a layer in steps that no
        CUDA graph covers
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
    weights : share of HBM bandwidth when GEMMs read weights
    gemm : share of peak FLOP/s of large GEMMs
    gemm_falloff : relative slowdown of GEMMs of 8,192 tokens
    gemm_ridge : share of memory or arithmetic time that does not overlap if both are equal
    gemm_launch : time per GEMM
    decode_attention : share of HBM bandwidth when decodes read KV
    decode_launch, decode_request : time per layer, and per layer, request and 32 heads
    prefill_attention : share of peak FLOP/s
    prefill_launch : time per layer
    prefill_io : share of HBM bandwidth when queries, keys, values and outputs are read and written
    ..._8bit : the six constants of attention above, with KV of one byte or less. Converting such KV
        takes time: half the bytes do not take half the time (FP8 measured; INT8 and INT4 assumed
        equal)
    mixed_decode : relative slowdown of decodes' KV reads by a long prompt in the same step
    elementwise : share of HBM bandwidth of norms, rotary embeddings and activation functions
    link, link_ring : share of one direction of NVLink or PCIe, for all-reduces of one exchange and
        of two
    layer_launch : time of other kernel launches per layer and step
    layer_launch_quantized : additional time of these if dense GEMMs quantise activations first
    latent_attention : share of HBM bandwidth when decodes read latents
    latent_prefill : share of peak FLOP/s for prompts of models with latents
    state_traffic : share of HBM bandwidth when states are read and written
    state_launch, scan_launch : time per layer with states, for decodes and for prompts
    scan : share of peak FLOP/s in the scan of a prompt
    scan_token : least time of a scan per token and layer, as it computes tokens one after another
    uncaptured_layer, uncaptured_experts : least time of a layer, and the additional one of a layer
        with experts, in steps that no CUDA graph covers: the host launches every kernel
    step, request : host work between steps, per step and per scheduled request
    sync_step, sync_request : additional host work if the GPU waits for it
    all_reduce, all_reduce_exchange : fixed time of an all-reduce, and of its second exchange
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


#: Weight formats with constants.
FORMATS = {
    "gemms": ("fp8", "fp8-block", "nvfp4"),
    "experts": ("16-bit", "fp8-block", "nvfp4", "mxfp4", "int4"),
}
#: Tables of a card with one table per weight format.
NESTED: dict[str, Any] = {"gemms": GemmShares, "experts": ExpertShares}


def read_table(file: Path = TABLE) -> dict[str, dict[str, Any]]:
    """Return the constants of all cards in a file.

    Raises
    ------
    ValueError
        If the file cannot be read or is not TOML.
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
    """Parse a file once, as every run reads it several times."""
    return tomllib.loads(text)


def card_of(gpu_name: str) -> str:
    """Return the key of a GPU's constants in the table, such as h100 for h100-sxm."""
    known = [c for c in (*read_table(), *NEAREST) if f"{gpu_name}-".startswith(f"{c}-")]
    return max(known, key=len, default=gpu_name.partition("-")[0])


def basis_of(gpu_name: str) -> str:
    """Return a text on the source of a card's constants."""
    card = measured_card(gpu_name)
    errors = read_table()[card].get("errors")
    own = card_of(gpu_name)
    if card != own:
        simple = "" if ratios_of(own) is None else f", scaled by simple tests of {tested(own)}"
        return (
            f"no kernels of {gpu_name} were measured: the {card.upper()}'s fractions of its peaks"
            f"{simple}; {spread()}"
        )
    if errors is None:
        return f"declared for the {card}, without measured kernels"
    fits = "; ".join(f"{kind}: {error}" for kind, error in errors.items())
    return f"fitted on kernels of the {card_of(gpu_name)} ({fits})"


def measured_narrow_kv(gpu_name: str, kv_dtype: str) -> bool:
    """Return True if attention over this KV dtype was measured on the card, as FP8 on the H100."""
    errors = read_table().get(card_of(gpu_name), {}).get("errors", {})
    return any(f"{kv_dtype.upper()} KV" in kind for kind in errors)


def with_narrow_kv(rate: Efficiency) -> Efficiency:
    """Return the constants for KV of one byte or less in place of those for 16-bit KV."""
    narrow = [f.name for f in fields(Efficiency) if f.name.endswith("_8bit")]
    values: dict[str, Any] = {n.removesuffix("_8bit"): getattr(rate, n) for n in narrow}
    return replace(rate, **values)


def gemm_shares(rate: Efficiency, quantization: str | None) -> GemmShares:
    """Return a card's constants of narrow GEMMs; for formats without constants, those of FP8."""
    return rate.gemms.get(quantization or "") or rate.gemms["fp8"]


@cache
def efficiency_of(gpu_name: str) -> Efficiency:
    """Return the constants of a card, from its own or another card's measurements."""
    table = read_table()
    given, default = table[measured_card(gpu_name)], table[DEFAULT]
    values: dict[str, Any] = dict(given)
    for name, kind in NESTED.items():
        formats = default[name] | given.get(name, {})
        values[name] = {key: kind(**shares) for key, shares in formats.items()}
    ratios = ratios_of(card_of(gpu_name))
    return Efficiency(**values) if ratios is None else scaled(Efficiency(**values), ratios)


def measured_card(gpu_name: str) -> str:
    """Return the card that provides a card's fractions: itself, its generation's, or the H100."""
    card = card_of(gpu_name)
    card = NEAREST.get(card, card)
    return card if card in read_table() else DEFAULT


def with_constants_of(file: str, efficiency: Efficiency, gpu_name: str) -> Efficiency:
    """Return constants with those of a user's TOML file for this card.

    The file has the form of ``efficiency.toml``; constants that it omits keep their values.

    Raises
    ------
    ValueError
        If the file has no table of the card, or a constant is unknown or not a number above 0.
    """
    table, card = read_table(Path(file)), card_of(gpu_name)
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
    """Return the constants of one table as floats; ValueError for a wrong name or value."""
    names = [f.name for f in fields(known) if f.name not in (*NESTED, "errors")]
    for name, value in _table_of(file, table, given).items():
        if name not in names:
            raise unknown_name(f"constant in {file}", name, names)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise ValueError(f"constants {file}: {name} must be a number above 0, not {value!r}")
    return {name: float(value) for name, value in given.items()}
