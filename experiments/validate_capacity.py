"""KV blocks that real vLLM servers logged at start-up, beside what `kvsim capacity` predicts.

No logged memory figure is used. A row is scored if its log tells model, GPU, utilisation, TP,
version, max_num_batched_tokens and max_num_seqs (or leaves them at a default of its version);
the others are listed with what is missing. The form of the overheads and its factors for
activations come from a trial fit on 24 rows of this same file. So that the table is not all in
sample, the base overhead of every row is taken anew from the other rows of its engine generation
(the only ROCm row keeps the shipped one).

Bands: blocks within 3 % at the median and 8 % at the 90th percentile; overhead within 0.25 and
0.6 GiB.

    python -m experiments.validate_capacity [--data ../shared/data]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

import kvsim
from kvsim.budget.budget import GIB, engine_of

#: Below this, KV is what little is left and overheads decide.
TIGHT_GIB = 10.0

#: By line of the file (0 is the first log): what the log says, in kvsim's words.
SCORED: dict[int, dict[str, Any]] = {
    0: {"model": "llama-3.1-8b", "gpu": "rtx-3090", "vllm_version": "0.6.4", "tokens": 20000},
    1: {"model": "llama-3.1-8b", "gpu": "rtx-3090", "vllm_version": "0.6.4", "tokens": 29000},
    7: {"model": "llama-2-7b", "vllm_version": "0.15.1", "seqs": 128},
    8: {"model": "llama-2-70b", "vllm_version": "0.15.1", "seqs": 128},
    9: {"model": "codellama-34b", "vllm_version": "0.15.1", "seqs": 128},
    10: {"model": "mistral-nemo", "vllm_version": "0.15.1", "seqs": 128},
    11: {"model": "qwen2.5-7b", "vllm_version": "0.15.1", "seqs": 128},
    12: {"model": "yi-34b", "vllm_version": "0.15.1", "seqs": 128},
    15: {"model": "llama-3.1-8b", "gpu": "rtx-4090", "vllm_version": "0.19.0"},
    18: {"model": "llama-3-8b", "gpu": "mi300x", "vllm_version": "0.6.0", "tokens": 8192},
    27: {"model": "tinyllama-1.1b", "gpu": "h200-sxm", "vllm_version": "0.6.4"},
}
#: Why the others are not, from the log's text alone.
NOT_SCORED = {
    2: "profile of 9.37 GiB with no stated max_num_batched_tokens",
    3: "A100 or H100, not said which; no block line",
    4: "no KV figure",
    5: "LoRA enabled",
    6: "GPU not named",
    13: "hybrid model",
    14: "GPU not named",
    16: "RTX A5000 is not in the catalogue",
    17: "GPU inferred",
    19: "line 18 again with FP8 KV: twice the blocks, as predicted (a test holds that)",
    20: "GPU inferred",
    21: "GPU inferred, max_num_seqs unknown",
    22: "multimodal model",
    23: "GGUF on a laptop card",
    24: "RTX 2060 is not in the catalogue",
    25: "GPU not named",
    26: "GPU not named",
    28: "GPU not named",
    29: "GPU inferred",
    30: "fine-tuning framework, rounded utilisation",
}
WHY_HYBRID = "hybrid model, approximate or another backend"


class Row(NamedTuple):
    """A scored log: blocks and overhead (GiB per GPU), ours and logged."""

    name: str
    generation: str
    logged: int
    ours: int
    overhead: float
    logged_overhead: float
    kv: float  # GiB, logged blocks
    base: float


def score(index: int, log: Any) -> Row:
    """Predict one start-up."""
    given = SCORED[index]
    found = kvsim.capacity(
        model=given["model"],
        gpu=given.get("gpu", "h100-sxm"),
        vllm_version=given["vllm_version"],
        gpu_memory_utilization=float(log.gpu_memory_utilization),
        tensor_parallel_size=int(log.tp),
        max_model_len=int(log.max_model_len),
        max_num_batched_tokens=given.get("tokens", 2048),
        max_num_seqs=given.get("seqs", 256),
    )
    budget = found.budget_bytes
    room = budget["total"] - budget["weights"]
    logged = int(log.num_gpu_blocks)
    engine = engine_of(given["vllm_version"])
    return Row(
        f"{given['model']} {found.gpu} {given['vllm_version']}",
        "ROCm" if found.gpu.startswith("mi") else "V1" if engine.since >= (0, 8) else "V0",
        logged,
        found.num_gpu_blocks,
        (room - budget["kv_cache"]) / GIB,
        (room - logged * found.bytes_per_block) / GIB,
        logged * found.bytes_per_block / GIB,
        engine.base_gib,
    )


def leave_one_out(rows: list[Row]) -> list[Row]:
    """Replace each row's base overhead by what the other rows of its generation leave over."""
    replaced = []
    for row in rows:
        others = [r for r in rows if r is not row and r.generation == row.generation]
        if not others:
            replaced.append(row)
            continue
        rest = [r.logged_overhead - (r.overhead - r.base) for r in others]
        overhead = row.overhead - row.base + float(np.median(rest))
        blocks = row.ours - round((overhead - row.overhead) * row.logged / row.kv)
        replaced.append(row._replace(overhead=overhead, ours=blocks))
    return replaced


def main() -> None:
    """Print the scored rows, the bands, and why the others are not scored."""
    parser = argparse.ArgumentParser(prog="python -m experiments.validate_capacity")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    options = parser.parse_args()
    file = options.data / "vllm_startup_blocks.csv"
    if not file.is_file():
        parser.error(f"{file}: no such file; --data names the folder with the start-up logs")
    logs = pd.read_csv(file)
    in_sample = [score(index, logs.iloc[index]) for index in SCORED]
    rows = leave_one_out(in_sample)
    table = Table(title="KV blocks at start-up", title_justify="left")
    for column in ("log", "logged", "as shipped, %", "left out, %", "overhead off by, GiB"):
        table.add_column(column, justify="left" if column == "log" else "right")
    shipped, errors, overheads = [], [], []
    for before, row in zip(in_sample, rows, strict=True):
        shipped.append(100 * (before.ours / row.logged - 1))
        errors.append(100 * (row.ours / row.logged - 1))
        overheads.append(row.overhead - row.logged_overhead)
        figures = (f"{row.logged:,}", f"{shipped[-1]:+.2f}", f"{errors[-1]:+.2f}")
        table.add_row(row.name, *figures, f"{overheads[-1]:+.2f}")
    console = Console(width=110)
    console.print(table)
    held = True
    for name, values, median, p90 in (
        ("blocks, %", errors, 3.0, 8.0),
        ("overhead, GiB", overheads, 0.25, 0.6),
    ):
        found = np.quantile(np.abs(values), [0.5, 0.9])
        ok = found[0] <= median and found[1] <= p90
        held &= bool(ok)
        verdict = "holds" if ok else "MISSED"
        console.print(
            f"{name}: median {found[0]:.2f} (band {median}), 90th percentile {found[1]:.2f} "
            f"(band {p90}): {verdict}"
        )
    tight = [i for i, row in enumerate(rows) if row.kv < TIGHT_GIB]
    constant = float(np.median([row.logged_overhead for row in rows]))
    ours = np.mean([abs(overheads[i]) for i in tight])
    flat = np.mean([abs(constant - rows[i].logged_overhead) for i in tight])
    console.print(
        f"{len(tight)} rows with KV under {TIGHT_GIB:.0f} GiB: overhead off by {ours:.2f} GiB, by "
        f"{flat:.2f} with one constant for all ({constant:.2f})"
    )
    for index, log in logs.iterrows():
        if index not in SCORED:
            reason = NOT_SCORED.get(index, WHY_HYBRID)
            console.print(f"not scored: line {index}, {log.model}: {reason}", style="dim")
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
