"""The setting of the PagedAttention paper (SOSP 2023, arXiv 2309.06180, section 6.1).

All figures share one configuration: models and their KV memory from table 1, block size 16, lengths
from log-normal distributions with the published means (`workloads.sharegpt`, `workloads.alpaca`),
and the host time per step and attention kernel of the 2023 engine. Nothing is tuned per figure.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

import kvsim

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvsim.trace import Trace

GIB = 2**30

#: Host work per step of the 2023 engine, seconds. It is fitted to one bar of Fig. 13 (vLLM on
#: ShareGPT, 30.42 requests in the batch), which is not scored; all other figures are held out.
HOST_SECONDS = 0.007
#: Slowdown of the paged attention kernel at block size 16: Fig. 18a says 20 to 26 %.
PAGED_OVERHEAD = 0.23

#: Model, GPUs, and KV memory of one GPU (table 1).
MODELS: dict[str, dict[str, Any]] = {
    "13B": {"model": "opt-13b", "gpu": "a100-40gb", "kv_cache_memory_bytes": 12 * GIB},
    "66B": {
        "model": "opt-66b",
        "gpu": "a100-40gb",
        "tensor_parallel_size": 4,
        "kv_cache_memory_bytes": 21 * GIB // 4,
    },
    "175B": {
        "model": "opt-175b",
        "gpu": "a100-80gb",
        "tensor_parallel_size": 8,
        "kv_cache_memory_bytes": 264 * GIB // 8,
    },
}

#: The systems under comparison, by the paper's names.
SYSTEMS: dict[str, dict[str, Any]] = {
    "FasterTransformer": {"allocator": "contiguous-max", "scheduler": "static"},
    "Orca (Max)": {"allocator": "contiguous-max", "scheduler": "orca"},
    "Orca (Pow2)": {"allocator": "contiguous-pow2", "scheduler": "orca"},
    "Orca (Oracle)": {"allocator": "contiguous-oracle", "scheduler": "orca"},
    "vLLM": {"allocator": "paged", "scheduler": "vllm-v0"},
}
ORCAS = ("Orca (Max)", "Orca (Pow2)", "Orca (Oracle)")


def serve(system: str, trace: Trace, model: str = "13B", **options: Any) -> kvsim.Result:
    """Serve a trace as one of the paper's systems would."""
    cost = f"roofline+host-seconds={HOST_SECONDS}+paged-overhead={PAGED_OVERHEAD}"
    given = {
        **MODELS.get(model, {}),
        **SYSTEMS[system],
        "cost_model": cost,
        "max_model_len": 2048,
        "max_num_seqs": 256,
        "enable_prefix_caching": False,
    }
    return kvsim.simulate(trace, **{**given, **options})


def while_arrivals_last(system: str, trace: Trace, model: str = "13B", **options: Any) -> Any:
    """Return the summary up to the last arrival, without the drain."""
    horizon = float(trace.arrival_time[-1] - trace.arrival_time[0])
    return serve(system, trace, model, horizon=horizon, **options).summary


def sustained_rate(system: str, trace: Trace, model: str = "13B", **options: Any) -> float:
    """Return the requests per second that a system completes if requests always wait.

    The first and the last fifth of all ends do not count, so ramp and drain are excluded. A server
    keeps up with any lower request rate, and with no higher one.
    """
    result = serve(system, trace.with_request_rate(float("inf")), model, **options)
    ends = np.sort(result.requests["finish_time"])
    ends = ends[np.isfinite(ends)]
    first, last = len(ends) // 5, len(ends) * 4 // 5
    return float((last - first) / (ends[last] - ends[first]))


def normalized_latency(result: kvsim.Result) -> float:
    """Return the mean over requests of end-to-end latency per output token, seconds."""
    done = result.requests[np.isfinite(result.requests["finish_time"])]
    latency = done["finish_time"] - done["arrival_time"]
    return float(np.mean(latency / done["num_output_tokens"]))


class Check(NamedTuple):
    """Figures of kvsim and of the paper, and the stated band; without a band, not judged."""

    name: str
    ours: float
    paper: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool | None:
        """Return True if ours lies in the band; None without a band."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.ours <= self.high


def within(name: str, ours: float, paper: float, *, percent: float) -> Check:
    """Return a check with a band of ``percent`` of the paper's figure on both sides."""
    room = abs(paper) * percent / 100
    return Check(name, ours, paper, paper - room, paper + room)


def near(name: str, ours: float, paper: float, *, points: float) -> Check:
    """Return a check with a band of ``points`` units on both sides of the paper's figure."""
    return Check(name, ours, paper, paper - points, paper + points)


class Figure(NamedTuple):
    """Result of an experiment: its checks, the rows of its CSV file, and the drawing function."""

    title: str
    checks: list[Check]
    rows: list[dict[str, Any]]
    draw: Callable[[Any], None] | None = None


def number(value: float | None) -> str:
    """Write a number with about four digits."""
    if value is None:
        return ""
    digits = 0 if abs(value) >= 1000 or value == int(value) else 2
    return f"{value:,.{digits}f}" if abs(value) >= 0.1 or value == 0 else f"{value:.3g}"


def show(figure: Figure) -> bool:
    """Print a figure's checks; return True if all bands hold."""
    table = Table(title=figure.title, title_justify="left")
    other = "paper" if figure.title.startswith(("Fig.", "Table")) else "expected"
    for column in ("", "ours", other, "band", ""):
        table.add_column(column, justify="left" if not column else "right")
    for check in figure.checks:
        band = "" if check.low is None else f"{number(check.low)} to {number(check.high)}"
        paper = number(check.paper)
        verdict = {True: "holds", False: "MISSED", None: ""}[check.holds]
        table.add_row(check.name, number(check.ours), paper, band, verdict)
    Console(width=110).print(table)
    return all(check.holds is not False for check in figure.checks)


def save(figure: Figure, name: str, folder: Path) -> None:
    """Write NAME.csv and NAME.png into a folder, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        rows = Path(scratch, f"{name}.csv")
        with rows.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(figure.rows[0]))
            writer.writeheader()
            writer.writerows(figure.rows)
        rows.replace(folder / rows.name)
        if figure.draw is not None:
            import matplotlib.figure

            picture = matplotlib.figure.Figure(figsize=(8, 4), layout="constrained")
            figure.draw(picture)
            picture.suptitle(figure.title, fontsize=10)
            picture.savefig(Path(scratch, f"{name}.png"), dpi=120)
            Path(scratch, f"{name}.png").replace(folder / f"{name}.png")


def bars(axes: Any, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> None:
    """Draw grouped bars, one colour per series."""
    width = 0.8 / len(series)
    for k, (name, values) in enumerate(series.items()):
        axes.bar(np.arange(len(groups)) + (k + 0.5) * width - 0.4, values, width, label=name)
    axes.set_xticks(range(len(groups)), groups)
    axes.legend(fontsize=7)


def lines(axes: Any, curves: Mapping[str, tuple[Iterable[float], Iterable[float]]]) -> None:
    """Draw one line with markers per curve."""
    for name, (xs, ys) in curves.items():
        axes.plot(list(xs), list(ys), marker="o", markersize=3, label=name)
    axes.legend(fontsize=7)


def main(name: str, measure: Callable[[bool], Figure], doc: str | None) -> None:
    """Run one experiment from the command line; exit with 1 if a band is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m experiments.{name}", description=doc)
    parser.add_argument("--quick", action="store_true", help="fewer requests")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write NAME.csv and NAME.png there")
    options = parser.parse_args()
    figure = measure(options.quick)
    held = show(figure)
    if options.out is not None:
        save(figure, name, options.out)
    else:
        print("nothing written; --out DIR writes the CSV and the picture")
    raise SystemExit(0 if held else 1)
