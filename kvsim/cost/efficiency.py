"""How much of a card's peaks each kind of work reaches. The only constants of the roofline.

They stand in ``efficiency.toml`` with the error of each fit; ``python -m experiments.calibrate``
makes them. Cards without measurements take the H100's fractions of their own peaks, which put an
RTX 4090 within 7 % of measured end-to-end times, and an RTX PRO 6000 within 14 %.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from kvsim.errors import unknown_name

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
    gemm_ridge : of the faster of memory and arithmetic, where both take as long, not hidden
    gemm_launch : per GEMM
    decode_attention : of HBM bandwidth, reading KV for one query token per request
    decode_launch, decode_request : per layer, and per layer, request and 32 heads
    prefill_attention : of peak FLOP/s
    prefill_launch : per layer
    ..._8bit : the same six with KV of one byte or less, which takes converting: half the bytes are
        not half the time (FP8 measured; INT8 and INT4 taken as equal)
    prefill_io : of HBM bandwidth, reading and writing queries, keys, values and outputs
    mixed_decode : by how much decodes read KV slower beside a long prompt in the same step
    elementwise : of HBM bandwidth, norms, rotary embedding, activation
    link, link_ring : of one direction of NVLink (or PCIe), all-reduces in one exchange and in two
    layer_launch : other kernel launches, per layer and step
    step, request : host work between steps, per step and per scheduled request
    sync_step, sync_request : host work besides, where the GPU waits for it
    all_reduce, all_reduce_exchange : fixed time of one all-reduce, and of a second exchange in it
    errors : of each fit, in words
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
    errors: dict[str, str] = field(default_factory=dict)


def read_table(file: Path = TABLE) -> dict[str, dict[str, Any]]:
    """Read the constants of all cards.

    Raises
    ------
    ValueError
        If the file cannot be read or is no TOML of tables.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"constants {file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ValueError(f"constants {file}: not TOML: no UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"constants {file}: not TOML: {error}") from None
    return table


def card_of(gpu_name: str) -> str:
    """Return the name under which a GPU's constants stand: h100 for h100-sxm."""
    return gpu_name.partition("-")[0]


def basis_of(gpu_name: str) -> str:
    """Say what a card's constants rest on."""
    errors = read_table().get(card_of(gpu_name), {}).get("errors")
    if errors is None:
        return f"no kernels of {gpu_name} were measured: the H100's fractions of its peaks"
    fits = "; ".join(f"{kind}: {error}" for kind, error in errors.items())
    return f"fitted on kernels of the {card_of(gpu_name)} ({fits})"


def measured_narrow_kv(gpu_name: str, kv_dtype: str) -> bool:
    """Whether attention over such KV was measured on such a card: FP8 on H100, nothing else."""
    errors = read_table().get(card_of(gpu_name), {}).get("errors", {})
    return any(f"{kv_dtype.upper()} KV" in kind for kind in errors)


def with_narrow_kv(rate: Efficiency) -> Efficiency:
    """Take the constants of KV of one byte or less for those of 16-bit KV."""
    narrow = [f.name for f in fields(Efficiency) if f.name.endswith("_8bit")]
    values: dict[str, Any] = {n.removesuffix("_8bit"): getattr(rate, n) for n in narrow}
    return replace(rate, **values)


@cache
def efficiency_of(gpu_name: str) -> Efficiency:
    """Return the constants of a card."""
    table = read_table()
    return Efficiency(**table.get(card_of(gpu_name), table[DEFAULT]))


def with_constants_of(file: str, efficiency: Efficiency, gpu_name: str) -> Efficiency:
    """Replace constants by those that a TOML file of the user's has for this card.

    The file has the form of ``efficiency.toml``, a table per card; what it leaves out stays.

    Raises
    ------
    ValueError
        If the file has no table of the card, an unknown constant, or one that is no number above 0.
    """
    table, card = read_table(Path(file)), card_of(gpu_name)
    given = table.get(gpu_name, table.get(card))
    if not isinstance(given, dict):
        raise ValueError(f"constants {file}: has no table [{card}]")
    known = [f.name for f in fields(Efficiency) if f.name != "errors"]
    for name, value in given.items():
        if name == "errors":
            continue
        if name not in known:
            raise unknown_name(f"constant in {file}", name, known)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
            raise ValueError(f"constants {file}: {name} must be a number above 0, not {value!r}")
    numbers: dict[str, Any] = {n: float(v) for n, v in given.items() if n != "errors"}
    return replace(efficiency, **numbers)
