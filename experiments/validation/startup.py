"""KV memory that servers logged at their start, beside what `kvsim capacity` says, log by log.

Nothing of a log is given but what its server was told and, where the card is not named, the memory
that CUDA showed. The logs are split in two halves by a hash; constants may be fitted on the first.
The table has the error and whether the logged memory lies in the printed interval. Goal on the
other half: 3 % at the median, 10 % at the worst, nine of ten inside.

A log that does not say the utilisation (nor the whole command) is listed with an assumed one and
summarised apart: a hundredth of it is 0.15 GiB on a T4 and 0.8 GiB on an H100.

    python -m experiments.validation.startup --data FOLDER [--out DIR]
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import kvsim
from experiments.validate_capacity import SCORED
from experiments.validation.data import command, require
from experiments.validation.points.rows import is_fitted
from experiments.validation.record import write_csv
from kvsim.budget.budget import GIB
from kvsim.catalog import get_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPORTS, BLOCKS = "defects/startup_logs.csv", "vllm_startup_blocks.csv"

QWEN = {"model": "Qwen/Qwen3.8-27B", "gpu": "rtx-5090", "vllm_version": "0.26"}
CODER = replace(get_model("llama-2-7b"), name="deepseek-coder-6.7b", vocab_size=32256)

#: By id of a public report: what its server was told.
ASKED: dict[str, dict[str, Any]] = {
    "B02": {"model": "qwen3-coder-480b-a35b", "gpu": "h200-sxm", "quantization": "fp8-block"}
    | {"data_parallel_size": 8, "enable_expert_parallel": True, "vllm_version": "0.10"},
    "B05": QWEN
    | {"gpu": "rtx-3090", "tensor_parallel_size": 2, "quantization": "fp8", "max_num_seqs": 2}
    | {"max_num_batched_tokens": 8192, "vllm_version": "0.27"},
    "B06": QWEN
    | {"gpu": "rtx-3090", "tensor_parallel_size": 2, "max_num_seqs": 2}
    | {"quantization": "gptq"}  # AutoRound: one scale per 128
    | {"max_num_batched_tokens": 8192, "gpu_memory_utilization": 0.88, "vllm_version": "0.21"},
    "B11": QWEN | {"tensor_parallel_size": 2, "quantization": "fp8"},
    "B14": QWEN
    | {"quantization": "nvfp4", "max_model_len": 32768, "kv_cache_dtype": "fp8"}
    | {"enforce_eager": True},
    "B16": {"model": "qwen2.5-14b", "gpu": "h100-sxm", "max_model_len": 4096, "max_num_seqs": 256}
    | {"max_num_batched_tokens": 2048, "gpu_memory_utilization": 0.9, "vllm_version": "0.21"},
    "B18": {"model": "gpt-oss-20b", "gpu": "l4", "kv_cache_dtype": "fp8", "max_model_len": 131072}
    | {"gpu_memory_utilization": 0.9, "vllm_version": "0.15"},  # the report is of February 2026
    "B20": {"model": "gpt-oss-20b", "gpu": "a100-80gb", "gpu_memory_utilization": 0.65}
    | {"max_model_len": 131072, "vllm_version": "0.19"},
    "B24": {"model": "llama-3.1-8b", "gpu": "rtx-3090", "max_num_batched_tokens": 512}
    | {"vllm_version": "0.6"},
    "B29": {"model": CODER, "gpu": "t4", "tensor_parallel_size": 2, "dtype": "float16"}
    | {"max_model_len": 16384, "vllm_version": "0.4"},
}
#: By line of the logs of blocks: the same, of logs that `validate_capacity` does not score but that
#: tell the card's memory.
MORE: dict[int, dict[str, Any]] = {
    3: {"model": "llama-3-8b", "gpu": "h100-sxm", "vllm_version": "0.6.5"},
    25: {"model": "phi-4", "gpu": "h100-sxm", "vllm_version": "0.7.3"}  # 0.8.2, V0 by its lines
    | {"quantization": "bitsandbytes"},
    26: {"model": "phi-4", "gpu": "a100-80gb", "vllm_version": "0.6.5", "quantization": "gptq"},
}
#: Logs whose sources do not say the utilisation.
ASSUMED = ("B16", "B24", "B29", "line 10", "line 11", "line 12")
#: What is known of errors above 10 %.
REMARKS = {
    "B29": "A utilisation of 0.67 would give the logged blocks. Neither Turing's attention (two "
    "other T4s under V0 took 0.74 and 0.90 GiB for activations, estimated 0.76 and 0.91) nor "
    "memory that PyTorch kept (0.3 GiB on an RTX 3090 under 0.4.1) explains 3.4 GiB.",
    "B11": "CUDA graphs took about 0.5 GiB (estimate 2.2).",
    "B14": "25.3 GiB of weights and profile run, estimate 25.7: 12 % of a small pool.",
}
FIGURES = ("logged", "estimate", "error", "interval", "inside")
COLUMNS = ("log", "server", *FIGURES, "half", "assumed", "remark")


class Row(NamedTuple):
    """One start-up: GiB of KV on a GPU, logged and estimated, and the bounds of the interval."""

    log: str
    server: str
    logged: float
    estimate: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return the estimate's error in per cent."""
        return 100 * (self.estimate / self.logged - 1)

    @property
    def inside(self) -> bool:
        return self.low <= self.logged <= self.high

    @property
    def fitted(self) -> bool:
        """Return True if constants may be fitted on the log."""
        return is_fitted(self.log)


def row_of(log: str, asked: dict[str, Any], quantity: str, value: float) -> Row:
    """Predict one start-up; the logged quantity is turned into memory by kvsim's own layout."""
    found = kvsim.capacity(**asked)
    estimate = found.budget_bytes["kv_cache"] / GIB
    ours = {
        "KV GiB": estimate,
        "blocks": found.num_gpu_blocks,
        "tokens": found.num_tokens,
        "max concurrency": found.logged_concurrency,
    }[quantity]
    bounds = found.kv_cache_bytes_interval or (0, 0)
    several = asked.get("tensor_parallel_size", 1) * asked.get("data_parallel_size", 1)
    server = f"{found.model} {asked.get('quantization', '')}".strip()
    server += f", {several} x {found.gpu}, vLLM {asked.get('vllm_version', '0.33')}"
    logged = estimate * value / ours
    return Row(log, server, logged, estimate, bounds[0] / GIB, bounds[1] / GIB)


def reports(data: Path) -> Iterator[Row]:
    """Predict the public reports that say enough."""
    with (data / REPORTS).open(encoding="utf-8") as file:
        told = {row["id"]: row for row in csv.DictReader(file)}
    for name, asked in ASKED.items():
        quantity = told[name]["logged quantity"].partition(" (")[0]
        yield row_of(name, asked, quantity, float(told[name]["logged value"]))


def start_ups(data: Path) -> Iterator[Row]:
    """Predict the logs of blocks that say enough."""
    with (data / BLOCKS).open(encoding="utf-8") as file:
        logs = list(csv.DictReader(file))
    for line, given in sorted({**SCORED, **MORE}.items()):
        log, asked = logs[line], dict(given)
        tokens, seqs = asked.pop("tokens", None), asked.pop("seqs", None)
        asked = {"gpu": "h100-sxm", **asked, "max_model_len": int(log["max_model_len"])}
        asked["gpu_memory_utilization"] = float(log["gpu_memory_utilization"])
        asked["tensor_parallel_size"] = int(log["tp"])
        if line in SCORED:
            asked |= {"max_num_batched_tokens": tokens or 2048, "max_num_seqs": seqs or 256}
        else:
            asked["logged"] = {"memory": float(log["total_gpu_mem_gib"])}
        blocks = log["num_gpu_blocks"]
        quantity = ("blocks", blocks) if blocks else ("KV GiB", log["kv_cache_gib_per_gpu"])
        yield row_of(f"line {line}", asked, quantity[0], float(quantity[1]))


def summary(rows: list[Row]) -> str:
    """Say in one line how far the rows are off."""
    errors = np.abs([row.error for row in rows])
    inside = sum(row.inside for row in rows)
    return (
        f"{len(rows)} logs: {np.median(errors):.1f} % at the median, {errors.max():.1f} % at the "
        f"worst, {inside} inside the interval"
    )


def table(rows: list[Row]) -> list[dict[str, str]]:
    """Lay out the rows, the worst first."""
    found = []
    for row in sorted(rows, key=lambda row: -abs(row.error)):
        half = "fitted" if row.fitted else "other"
        bounds = f"{row.low:.2f} to {row.high:.2f}"
        figures = (f"{row.logged:.2f}", f"{row.estimate:.2f}", f"{row.error:+.1f}", bounds)
        assumed = "utilisation" if row.log in ASSUMED else ""
        told = (half, assumed, REMARKS.get(row.log, ""))
        fields = (row.log, row.server, *figures, "yes" if row.inside else "no", *told)
        found.append(dict(zip(COLUMNS, fields, strict=True)))
    return found


def main() -> None:
    """Print and write the table, and both halves in a line each."""
    parser = command("validation.startup", __doc__)
    options = parser.parse_args()
    require(parser, options.data, (REPORTS,))
    rows = [*reports(options.data), *start_ups(options.data)]
    lines = table(rows)
    for line in lines:
        print("  ".join(line.values()))
    for name, fitted in (("fitted", True), ("other", False)):
        half = [row for row in rows if row.fitted == fitted]
        print(f"{name}: {summary(half)}")
        said = [row for row in half if row.log not in ASSUMED]
        print(f"{name}, utilisation said: {summary(said)}")
    if options.out is not None:
        write_csv(options.out / "startup.csv", COLUMNS, (line.values() for line in lines))


if __name__ == "__main__":
    main()
