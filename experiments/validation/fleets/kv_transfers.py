"""B3: 18 measured transfers of KV: bytes exactly, times by two figures a fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from experiments.validation.fleets.bars import Row, near, worst
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_model
from kvsim.fleet.fabric import Fabric, fabric_of

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SETS = ("fleet/mooncake_transfer",)
PERCENT = 10.0


class Setting(NamedTuple):
    """Configuration of one setting of the table.

    Attributes
    ----------
    fabric : its name in kvsim's table
    model, tp : what was served, on how many GPUs
    template : tokens that the server's chat template puts around a prompt: one number makes all
        nine sizes of vLLM's table exact; SGLang's table has none
    units : of printed sizes, bytes and decimals, the largest first
    """

    fabric: str
    model: str
    tp: int
    template: int
    units: tuple[tuple[float, int], ...]


SETTINGS = {
    "qwen3-8b_h800_tp8_vllm0.11.2dev": Setting(
        "h800-8x-roce-mooncake", "qwen3-8b", 8, 14, ((2**30, 2), (2**20, 0))
    ),
    "qwen3-235b-a22b_h20-3e_tp8_sglang": Setting(
        "h20-4x400g-mooncake", "qwen3-235b-a22b", 8, 0, ((1e9, 2), (1e6, 0))
    ),
}


def bytes_per_token(model: str, tp: int) -> int:
    """Return what one token takes on all ranks: heads are copied where there are more ranks."""
    layout = kv_layout(get_model(model), kv_dtype("bf16"), tensor_parallel_size=tp)
    return layout.bytes_per_token * tp


def as_printed(num_bytes: float, units: tuple[tuple[float, int], ...]) -> float:
    """Return a size as a table rounds it: in the largest unit of which there is at least one."""
    unit, digits = next((u for u in units if num_bytes >= u[0]), units[-1])
    return round(num_bytes / unit, digits) * unit


def fit(num_bytes: NDArray[Any], seconds: NDArray[Any]) -> tuple[float, float]:
    """Return base and bandwidth of the least squares of relative errors."""
    rows = np.stack([np.ones(len(seconds)), num_bytes], axis=1) / seconds[:, None]
    base, per_byte = np.linalg.lstsq(rows, np.ones(len(seconds)), rcond=None)[0]
    return float(base), float(1 / per_byte)


def fabric_from(table: pd.DataFrame) -> Fabric:
    """Fit a fabric on the rows of one setting."""
    seconds = table.transfer_ms.to_numpy() / 1e3
    return Fabric("fitted", *fit(table.kv_size_bytes.to_numpy(dtype=float), seconds))


def rows(data: Path) -> list[Row]:
    """Judge bytes and times of both settings."""
    table = pd.read_csv(data / SETS[0] / "transfer.csv")
    found = []
    for name, setting in SETTINGS.items():
        of = table[table.setting == name]
        per_token = bytes_per_token(setting.model, setting.tp)
        sizes = (of.prompt_tokens + setting.template) * per_token
        same = [
            abs(as_printed(size, setting.units) - theirs) < 1
            for size, theirs in zip(sizes, of.kv_size_bytes, strict=True)
        ]
        note = f"{per_token:,} bytes a token on {setting.tp} ranks"
        note += f", {setting.template} more tokens of a template" if setting.template else ""
        what = f"{setting.fabric}: rows whose bytes come out as printed"
        found.append(Row(what, len(of), sum(same), "all", all(same), note))
        fabrics = {"fitted": fabric_from(of), "shipped": fabric_of(setting.fabric)}
        for kind, fabric in fabrics.items():
            times = [1e3 * fabric.time(b) for b in of.kv_size_bytes]
            errors = [
                (100 * (ours / theirs - 1), theirs, ours)
                for ours, theirs in zip(times, of.transfer_ms, strict=True)
            ]
            off = worst([error for error, _, _ in errors])
            _, theirs, ours = next(e for e in errors if e[0] == off)
            note = f"{1e3 * fabric.base:.2f} ms and {fabric.bandwidth / 1e9:.0f} GB/s, {kind}"
            what = f"{setting.fabric}: ms of the worst of {len(of)} rows"
            found.append(near(what, theirs, ours, percent=PERCENT, note=note))
    return found
