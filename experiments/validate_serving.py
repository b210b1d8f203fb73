"""Whole serving runs, measured on real GPUs, compared with simulations of the same requests.

Each run is replayed with the number of blocks that its server logged: arrivals, prompt and output
lengths as measured, under the client's limit of requests in flight. Step times are fitted to
kernels and to a few runs (`FITTED`, and the closed loops on two GPUs with prompts of 1,024 tokens);
all other runs are held out. Bands apply to the mean of the absolute errors over the held-out runs
of a row, and to the worst run. The exit code is always 0; tests/test_validation.py defines the
bands that must hold.

The sample in tests/data has the runs of Llama-3.1-8B and the closed loops.

    python -m experiments.validate_serving [--quick] [--data FOLDER] [--out DIR]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console

from experiments.validation.data import command, opening, require
from experiments.validation.figures import (
    loop_errors_by_batch,
    runs_against_measured,
    second_by_second,
)
from experiments.validation.record import headed, write
from experiments.validation.serving import (
    FITTED,
    Found,
    Run,
    closed_loops,
    compare,
    constant_rates,
    qwen,
    series_errors,
    sharegpt300,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.table import Table

COLUMNS = ("E2E", "TPOT", "TTFT", "p99 TTFT", "KV", "throughput")
#: Beginning of the runs' names, metric, band of the mean error, band of the worst run; percent.
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
    ("llama-3.1-8b RTXPRO6000", "E2E", 8.0, 8.0),
)
#: One constant is fitted to the saturated run, so its throughput is listed as fitted.
SATURATED = ("throughput", 5.0)


#: Sets with the times of single requests, and their readers; closed loops have another format.
READERS: dict[str, Callable[[Path], list[Run]]] = {
    "serving/qwen3-14b_h100_vllm0.23": qwen,
    "serving/sharegpt300_vllm0.19": sharegpt300,
    "serving/h100_vllm0.15": constant_rates,
}
LOOPS = "serving/measured_serving_points.csv"
SETS = (*READERS, LOOPS)


class Pair(NamedTuple):
    """A run, its simulation, and the errors of the simulation, percent by column."""

    run: Run
    found: Found
    errors: dict[str, float]

    @property
    def fitted(self) -> bool:
        """Return True if a constant was fitted on this run."""
        loop = self.run.options.get("async_scheduling") is False
        few = self.run.options.get("tensor_parallel_size") == 2
        on_two = loop and few and self.run.trace.num_prompt_tokens[0] == 1024
        return self.run.name in FITTED or bool(on_two)


def all_runs(data: Path) -> list[Run]:
    """Return all runs of a folder, except closed loops."""
    there = [(name, read) for name, read in READERS.items() if (data / name).exists()]
    return [run for name, read in there for run in read(data / name)]


def all_loops(data: Path) -> list[Run]:
    """Return the closed loops of a folder; empty if it has none."""
    return closed_loops(data / LOOPS) if (data / LOOPS).exists() else []


def pair(run: Run) -> Pair:
    """Simulate a run, and compare."""
    found = simulate(run)
    return Pair(run, found, compare(run, found))


def verdicts(pairs: list[Pair]) -> list[dict[str, Any]]:
    """Return the verdict of each band over held-out runs; rows without runs are left out."""
    judged = []
    for start, what, mean_band, worst_band in BANDS:
        found = [
            abs(p.errors[what])
            for p in pairs
            if p.run.name.startswith(start) and not p.fitted and what in p.errors
        ]
        row = {"runs": start, "of": what, "number": len(found)}
        row |= {"mean_band": mean_band, "worst_band": worst_band}
        if found:
            mean, worst = float(np.mean(found)), max(found)
            row |= {"mean": mean, "worst": worst}
            row["holds"] = mean <= mean_band and worst <= worst_band
        judged.append(row)
    what, band = SATURATED
    for p in pairs:
        if what in p.errors:
            off = abs(p.errors[what])
            row = {"runs": f"{p.run.name} (fitted)", "of": what, "number": 1, "mean_band": band}
            judged.append(row | {"mean": off, "holds": off <= band})
    return judged


def verdicts_table(judged: list[dict[str, Any]]) -> Table:
    """Lay out the bands."""
    columns = ("number", "mean", "band", "worst", "band", "")
    table = headed("Bands, held-out runs, %", ("runs", "of"), columns)
    words = {True: "holds", False: "MISSED", None: "absent"}
    for row in judged:
        figures = [
            format(row[key], digits) if key in row else ""
            for key, digits in (
                ("mean", ".1f"),
                ("mean_band", ".0f"),
                ("worst", ".1f"),
                ("worst_band", ".0f"),
            )
        ]
        verdict = words[row.get("holds")]
        table.add_row(row["runs"], row["of"], str(row["number"]), *figures, verdict)
    return table


def runs_table(pairs: list[Pair]) -> Table:
    """Lay out the errors of every run."""
    table = headed("Simulated over measured, %", ("run",), COLUMNS)
    for p in pairs:
        label = p.run.name + (" (fitted)" if p.fitted else "")
        table.add_row(label, *(f"{p.errors[c]:+.1f}" if c in p.errors else "" for c in COLUMNS))
    return table


def loop_groups(loops: list[Pair]) -> list[dict[str, Any]]:
    """Summarise closed loops by GPUs and prompt length."""
    groups: dict[tuple[int, int], list[Pair]] = {}
    for p in loops:
        key = (p.run.options["tensor_parallel_size"], int(p.run.trace.num_prompt_tokens[0]))
        groups.setdefault(key, []).append(p)
    rows = []
    for (gpus, prompt), of in sorted(groups.items()):
        errors = [p.errors["E2E"] for p in of]
        rows.append(
            {
                "gpus": gpus,
                "prompt": prompt,
                "runs": len(errors),
                "fitted": of[0].fitted,
                "median": float(np.median(errors)),
                "median_absolute": float(np.median(np.abs(errors))),
                "lowest": min(errors),
                "highest": max(errors),
            }
        )
    return rows


def loops_table(groups: list[dict[str, Any]]) -> Table:
    """Lay out the E2E times of closed loops."""
    figures = ("GPUs", "prompt", "runs", "median", "median abs.", "lowest", "highest")
    table = headed("Closed loops, E2E simulated over measured, %", (), figures)
    for row in groups:
        gpus = f"{row['gpus']}{' (fitted)' if row['fitted'] else ''}"
        signed = [f"{row[name]:+.1f}" for name in ("median", "lowest", "highest")]
        signed.insert(1, f"{row['median_absolute']:.1f}")
        table.add_row(gpus, str(row["prompt"]), str(row["runs"]), *signed)
    return table


def record(out: Path, data: Path, pairs: list[Pair], loops: list[Pair]) -> None:
    """Write all results as JSON, and the figures."""

    def shown(p: Pair) -> dict[str, Any]:
        row = {"run": p.run.name, "fitted": p.fitted, "errors_percent": p.errors}
        if p.run.series is not None:
            row["mean_difference_per_second"] = series_errors(p.run, p.found)
        return row

    found = {
        "runs": [shown(p) for p in pairs],
        "bands": verdicts(pairs),
        "closed_loops": [shown(p) for p in loops],
        "closed_loops_by_group": loop_groups(loops),
    }
    pictures = {"validate_serving": lambda figure: runs_against_measured(figure, [*pairs, *loops])}
    if loops:
        pictures["validate_serving_by_batch"] = lambda figure: loop_errors_by_batch(figure, loops)
    followed = [p for p in pairs if p.run.series is not None]
    if followed:
        pictures["validate_serving_seconds"] = lambda figure: second_by_second(figure, followed[0])
    write(out, "validate_serving", found, pictures, data=data, sets=SETS)


def main() -> None:
    """Print every run, the bands, and the closed loops."""
    parser = command("validate_serving", __doc__)
    parser.add_argument("--quick", action="store_true", help="without the closed loops")
    options = parser.parse_args()
    if options.quick and options.out is not None:
        parser.error("--out writes all runs; leave out --quick")
    require(parser, options.data, SETS)
    print(opening(options.data, SETS))
    console = Console(width=110)
    pairs = [pair(run) for run in all_runs(options.data)]
    console.print(runs_table(pairs))
    for p in pairs:
        if p.run.series is not None:
            series = series_errors(p.run, p.found).items()
            text = ", ".join(f"{name} {value:.1f}" for name, value in series)
            console.print(f"{p.run.name}, mean absolute difference per second: {text}")
    console.print(verdicts_table(verdicts(pairs)))
    if options.quick:
        print("--quick: the closed loops were not simulated")
    loops = [] if options.quick else [pair(run) for run in all_loops(options.data)]
    if loops:
        console.print(loops_table(loop_groups(loops)))
    if options.out is not None:
        record(options.out, options.data, pairs, loops)


if __name__ == "__main__":
    main()
