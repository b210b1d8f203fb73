"""Whole serving runs, measured on real GPUs, beside the same requests simulated.

Each run is replayed with the block count that its server logged: arrivals, prompt and output
lengths as measured, under the client's limit of requests in flight. The simulator's step times are
fitted on kernels and on a few runs (`FITTED`, and the closed loops on two GPUs with prompts of
1,024 tokens); every other run is held out. The bands are means of absolute errors over the held-out
runs of each row, and the worst single run.

    python -m experiments.validate_serving [--data ../shared/data]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments._serving import (
    FITTED,
    Run,
    closed_loops,
    compare,
    constant_rates,
    qwen,
    series_errors,
    sharegpt300,
    simulate,
)

COLUMNS = ("E2E", "TPOT", "TTFT", "p99 TTFT", "KV", "throughput")
#: Beginning of the runs' names, what, band of the mean, band of the worst run; percent.
BANDS = (
    ("qwen3-14b H100", "E2E", 5.0, 10.0),
    ("qwen3-14b H100", "TPOT", 5.0, 10.0),
    ("qwen3-14b H100", "TTFT", 10.0, 15.0),
    ("qwen3-14b H100", "p99 TTFT", 12.0, 20.0),
    ("qwen3-14b H100", "KV", 10.0, 10.0),
    ("llama-3.1-8b RTX4090", "E2E", 12.0, 12.0),
    ("llama-2-7b H100", "E2E", 5.0, 5.0),
    ("llama-2-7b H100", "TPOT", 5.0, 5.0),
    ("llama-2-7b H100", "TTFT", 15.0, 15.0),
    ("codellama-34b H100", "E2E", 5.0, 10.0),
    ("codellama-34b H100", "TTFT", 15.0, 15.0),
    ("llama-3.1-8b RTXPRO6000", "E2E", 12.0, 12.0),
)
#: The saturated run decided one constant; its throughput is listed, as fitted.
SATURATED = ("throughput", 5.0)


def all_runs(serving: Path) -> list[Run]:
    """Every run with times of its own."""
    return [
        *qwen(serving / "qwen3-14b_h100_vllm0.23"),
        *sharegpt300(serving / "sharegpt300_vllm0.19"),
        *constant_rates(serving / "h100_vllm0.15"),
    ]


def verdicts(errors: dict[str, dict[str, float]]) -> Table:
    """Hold the errors by run against the bands."""
    table = Table(title="Bands, held-out runs, %", title_justify="left")
    for column in ("runs", "of", "number", "mean", "band", "worst", "band", ""):
        table.add_column(column, justify="left" if column in ("runs", "of") else "right")
    for start, what, mean_band, worst_band in BANDS:
        found = [
            abs(e[what])
            for name, e in errors.items()
            if name.startswith(start) and name not in FITTED and what in e
        ]
        mean, worst = float(np.mean(found)), max(found)
        held = mean <= mean_band and worst <= worst_band
        figures = (f"{mean:.1f}", f"{mean_band:.0f}", f"{worst:.1f}", f"{worst_band:.0f}")
        table.add_row(start, what, str(len(found)), *figures, "holds" if held else "MISSED")
    what, band = SATURATED
    for name, e in errors.items():
        if what in e:
            verdict = "holds" if abs(e[what]) <= band else "MISSED"
            figures = (f"{abs(e[what]):.1f}", f"{band:.0f}", "", "")
            table.add_row(f"{name} (fitted)", what, "1", *figures, verdict)
    return table


def loops_table(runs: list[Run]) -> Table:
    """Whole times of closed loops, by GPUs and prompt length."""
    table = Table(title="Closed loops, E2E simulated over measured, %", title_justify="left")
    for column in ("GPUs", "prompt", "runs", "median", "median abs.", "worst"):
        table.add_column(column, justify="right")
    groups: dict[tuple[Any, ...], list[float]] = {}
    for run in runs:
        key = (run.options["tensor_parallel_size"], int(run.trace.num_prompt_tokens[0]))
        groups.setdefault(key, []).append(compare(run, simulate(run))["E2E"])
    for (tp, prompt), errors in sorted(groups.items()):
        fitted = " (fitted)" if (tp, prompt) == (2, 1024) else ""
        figures = (np.median(errors), np.median(np.abs(errors)), max(errors, key=abs))
        row = (f"{tp}{fitted}", str(prompt), str(len(errors)))
        table.add_row(*row, f"{figures[0]:+.1f}", f"{figures[1]:.1f}", f"{figures[2]:+.1f}")
    return table


def main() -> None:
    """Print every run, the bands, and the closed loops."""
    parser = argparse.ArgumentParser(prog="python -m experiments.validate_serving")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--quick", action="store_true", help="without the closed loops")
    options = parser.parse_args()
    serving = options.data / "serving"
    if not serving.is_dir():
        parser.error(f"{serving}: no such folder; --data names the one with the measured runs")
    table = Table(title="Simulated over measured, %", title_justify="left")
    table.add_column("run")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    notes, errors = [], {}
    for run in all_runs(serving):
        found = simulate(run)
        errors[run.name] = of = compare(run, found)
        label = run.name + (" (fitted)" if run.name in FITTED else "")
        table.add_row(label, *(f"{of[c]:+.1f}" if c in of else "" for c in COLUMNS))
        if run.series is not None:
            series = series_errors(run, found)
            notes.append(", ".join(f"{name} {value:.1f}" for name, value in series.items()))
            notes[-1] = f"{run.name}, mean absolute difference per second: {notes[-1]}"
    console = Console(width=110)
    console.print(table)
    for note in notes:
        console.print(note)
    console.print(verdicts(errors))
    if not options.quick:
        console.print(loops_table(closed_loops(serving / "measured_serving_points.csv")))


if __name__ == "__main__":
    main()
