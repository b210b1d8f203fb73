"""Kinds of kernels in aiconfigurator-core's tables: their formulas, constants, and a fit of each.

GEMMs in fewer bits, routed experts and latent attention on every card; on cards that the
measurements do not hold, the kinds of `kernel_times`, too. Every second shape is held out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.validation.constants import with_values
from experiments.validation.fit import fit
from experiments.validation.kernels import measured as kernel_times
from experiments.validation.kernels import tables as table_files
from kvsim.catalog import get_gpu
from kvsim.cost.arithmetic import peak_flops

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from experiments.validation.constants import Card

#: Cards of the tables, and the names under which their constants stand.
CARDS = {
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
#: Values per token that latent attention reads, rotary part included (DeepSeek, Kimi).
LATENT = 576
#: A fit that misses the other kernels by more percent says nothing: the H100's shares stay.
WORST = 30.0
#: Most rows of a fit.
MOST_ROWS = 2500


class TableKind(NamedTuple):
    """A kind of kernels: constants with a start and bounds, the formula, rows, and shapes."""

    constants: tuple[str, ...]
    start: tuple[float, ...]
    least: tuple[float, ...]
    most: tuple[float, ...]
    seconds: Callable[[Any, Any, Any], Any]
    rows: Callable[[Path, str], Any]
    shape: tuple[str, ...]


class Fitted(NamedTuple):
    """Constants found, and median absolute errors, percent, on the rows fitted and the others."""

    constants: dict[str, float]
    fitted_on: int
    fitted: float
    others_on: int
    others: float

    @property
    def words(self) -> str:
        """Say so in a line."""
        text = f"median {self.fitted:.1f} % fitted on {self.fitted_on} kernels, "
        return text + f"{self.others:.1f} % on {self.others_on} others"


def narrow_gemm(p: Any, d: Any, gpu: Any) -> Any:
    """Activations brought to fewer bits, then a GEMM in them."""
    launch, weights, share, ridge, quantization = p
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    moved = d.weight * d.k * d.n + d.activation * d.m * d.k + 2.0 * d.m * d.n
    memory = moved / (weights * bandwidth)
    arithmetic = 2.0 * d.m * d.n * d.k / (share * d.peak)
    slower, faster = np.maximum(memory, arithmetic), np.minimum(memory, arithmetic)
    time = launch + slower + ridge * faster**2 / slower
    return time + 3.0 * d.m * d.k / (quantization * bandwidth)


def experts(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, the soft maximum of reading touched experts and computing rows, and moving rows."""
    launch, weights, share, power, block, activations = p
    bandwidth = gpu.memory_bandwidth_bytes_per_s
    memory = d.touched * d.params * d.weight / (weights * bandwidth)
    arithmetic = 2.0 * (d.rows + block * d.touched) * d.params / (share * d.peak)
    both = (memory**power + arithmetic**power) ** (1.0 / power)
    moved = d.rows * 2.0 * (2.0 * d.hidden_size + d.width)
    return launch + both + moved / (activations * bandwidth)


def latent_decode(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, and the slower of reading latents and of the arithmetic of all heads."""
    launch, per_request, share, compute = p
    keys = d.batch_size * d.kv_len
    memory = keys * LATENT * d.kv_element / (share * gpu.memory_bandwidth_bytes_per_s)
    flops = 2.0 * keys * np.maximum(d.num_heads, 16) * (LATENT + 512)
    requests = d.batch_size * d.num_heads / 32
    return (
        launch
        + per_request * requests
        + np.maximum(memory, flops / (compute * gpu.bf16_flops_per_s))
    )


def latent_prompt(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, arithmetic over all pairs, and reading and writing every token once."""
    launch, share, io = p
    pairs = d.batch_size * d.isl * (d.isl + 1) / 2
    moved = 2.0 * 2.0 * 320 * d.num_heads * d.batch_size * d.isl
    time = launch + 2.0 * 320 * d.num_heads * pairs / (share * gpu.bf16_flops_per_s)
    return time + moved / (io * gpu.memory_bandwidth_bytes_per_s)


def state_update(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, and reading and writing every request's state, in 32 bits."""
    launch, share = p
    moved = 2.0 * 4.0 * d.batch_size * d.num_v_heads * d.head_v_dim * d.head_k_dim
    return launch + moved / (share * gpu.memory_bandwidth_bytes_per_s)


def scan(p: Any, d: Any, gpu: Any) -> Any:
    """A launch, and the slower of the arithmetic and of tokens that follow each other."""
    launch, share, token = p
    flops = 4.0 * d.num_tokens * d.num_v_heads * d.head_v_dim * d.head_k_dim
    return launch + np.maximum(flops / (share * gpu.bf16_flops_per_s), d.seq_len * token)


def gemm_kind(form: str) -> TableKind:
    return TableKind(
        tuple(f"gemms.{form}.{n}" for n in ("launch", "weights", "gemm", "ridge", "quantization")),
        (5e-6, 0.85, 0.7, 0.1, 0.4),
        (1e-6, 0.5, 0.2, 1e-3, 0.05),
        (2e-5, 0.98, 1.0, 1.0, 1.0),
        narrow_gemm,
        partial(table_files.gemms, form=form),
        ("n", "k"),
    )


def expert_kind(form: str) -> TableKind:
    """Return the routed experts of one format."""
    names = ("launch", "weights", "gemm", "power", "block", "activations")
    return TableKind(
        tuple(f"experts.{form}.{name}" for name in names),
        (4e-5, 0.85, 0.4, 1.5, 8.0, 0.5),
        (1e-5, 0.5, 0.05, 0.8, 1e-3, 0.2),
        (2e-4, 0.98, 0.95, 3.0, 64.0, 1.0),
        experts,
        partial(table_files.experts, form=form),
        ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"),
    )


def wide_kind(name: str, rows: Callable[[Path, str], Any], *shape: str) -> TableKind:
    """Return a kind of 16-bit kernels with the formula of the measured ones."""
    kind = kernel_times.KINDS[name]
    least = tuple(x / (5 if "launch" in n else 100) for n, x in zip(*kind[1:3], strict=True))
    return TableKind(*kind[1:3], least, (1.0,) * len(least), kind.seconds, rows, shape)


#: Of every card.
NARROW = {
    "GEMM, FP8": gemm_kind("fp8"),
    "GEMM, FP8 in blocks": gemm_kind("fp8-block"),
    "GEMM, NVFP4": gemm_kind("nvfp4"),
    "experts, 16-bit": expert_kind("16-bit"),
    "experts, FP8 in blocks": expert_kind("fp8-block"),
    "experts, NVFP4": expert_kind("nvfp4"),
    "experts, MXFP4": expert_kind("mxfp4"),
    "experts, INT4": expert_kind("int4"),
    "latent attention": TableKind(
        ("latent_launch", "latent_request", "latent_attention", "latent_compute"),
        (1e-5, 5e-8, 0.7, 0.6),
        (1e-6, 1e-9, 0.3, 0.2),
        (5e-5, 1e-6, 1.0, 1.0),
        latent_decode,
        table_files.latent_decodes,
        ("num_heads",),
    ),
    "prompts, latent": TableKind(
        ("latent_prefill_launch", "latent_prefill", "latent_io"),
        (1e-5, 0.6, 0.4),
        (1e-6, 0.1, 0.05),
        (5e-5, 1.0, 1.0),
        latent_prompt,
        table_files.latent_prompts,
        ("num_heads",),
    ),
}
STATES = {
    "states of decodes": TableKind(
        ("state_launch", "state_traffic"),
        (5e-6, 0.8),
        (1e-6, 0.3),
        (5e-5, 1.0),
        state_update,
        partial(table_files.states, phase="generation"),
        ("num_v_heads", "num_k_heads"),
    ),
    "scans of prompts": TableKind(
        ("scan_launch", "scan", "scan_token"),
        (2e-5, 0.1, 4e-8),
        (1e-6, 0.01, 1e-9),
        (1e-4, 1.0, 1e-6),
        scan,
        partial(table_files.states, phase="context"),
        ("num_v_heads", "num_k_heads"),
    ),
}
#: Of cards that were not measured otherwise.
WIDE = {
    "GEMM": wide_kind("GEMM", partial(table_files.gemms, form="16-bit"), "n", "k"),
    **{
        (name := f"{phase} attention{suffix}"): wide_kind(
            name, partial(rows, kv_dtype=kv_dtype), "num_kv_heads"
        )
        for suffix, kv_dtype in (("", "bfloat16"), (", FP8 KV", "fp8"))
        for phase, rows in (("decode", table_files.decodes), ("prefill", table_files.prompts))
    },
    "all-reduce": wide_kind("all-reduce", table_files.all_reduces, "num_gpus"),
}
#: Constants of the formulas that the roofline takes from elsewhere.
UNUSED = ("latent_launch", "latent_request", "latent_compute", "latent_prefill_launch", "latent_io")


def kinds_of(card: str) -> dict[str, TableKind]:
    """Return the kinds that are fitted on a card's tables."""
    return (NARROW if card == "h100_sxm" else WIDE | NARROW) | STATES


def calibrate_tables(folder: Path, table: dict[str, Card]) -> dict[str, Card]:
    """Return a table of constants with those that the package's tables show.

    Cards that were not in it begin with the H100's constants.
    """
    found = dict(table)
    for system, card in CARDS.items():
        constants: Card = {n: v for n, v in found["h100"].items() if n != "errors"}
        errors: dict[str, str] = {}
        if card == "h100":
            errors = dict(found[card]["errors"])
        for name, kind in kinds_of(system).items():
            fitted = fit_kind(kind, folder, system)
            if fitted is None or fitted.others > WORST:
                continue
            constants = with_values(constants, fitted.constants)
            errors[name] = fitted.words
        found[card] = constants | {"errors": errors}
    return found


def fit_kind(kind: TableKind, folder: Path, card: str) -> Fitted | None:
    """Fit a kind on every second shape of a card's table; None if it has no rows."""
    table = kind.rows(folder, card)
    if len(table) == 0:
        return None
    gpu = get_gpu({"h100_sxm": "h100-sxm"}.get(card) or table_files.CARDS[card])
    form = kind.constants[0].split(".")[1] if kind.constants[0].count(".") == 2 else None
    table = table.assign(peak=peak_flops(gpu, None if form == "16-bit" else form))
    shapes = list(map(tuple, table[list(kind.shape)].to_numpy().tolist()))
    odd = set(sorted(set(shapes))[1::2])
    held = np.array([shape in odd for shape in shapes])
    train, others = table[~held], table[held] if held.any() else table
    if len(train) > MOST_ROWS:
        train = train.sample(MOST_ROWS, random_state=0)
    columns, least, most = train.to_records(index=False), np.array(kind.least), np.array(kind.most)

    def seconds(values: Any) -> Any:
        inside = np.clip(values, least, most)
        outside = (np.asarray(values) / inside) ** 5  # held by a wall, not clipped flat
        return np.concatenate([kind.seconds(inside, columns, gpu), outside])

    target = np.concatenate([train.seconds.to_numpy(), np.ones(len(least))])
    found = np.clip(fit(seconds, kind.start, target), least, most)

    def error(rows: Any) -> float:
        ours = kind.seconds(found, rows.to_records(index=False), gpu)
        return float(100 * np.median(np.abs(ours / rows.seconds.to_numpy() - 1)))

    named = dict(zip(kind.constants, map(float, found), strict=True))
    named = {name: value for name, value in named.items() if name not in UNUSED}
    return Fitted(named, len(train), error(train), len(others), error(others))
