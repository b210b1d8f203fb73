"""A roofline for the terminal: the limit of each kind of work, and the memory hierarchy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from kvsim.report.narrow import plain_table
from kvsim.report.text import gib, milliseconds, percent, rate

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kvsim.intensity.roofline import Roofline


def roofline_tables(found: Roofline) -> RenderableType:
    """Lay out the work by phase and part, the conclusions, and the memory hierarchy."""
    gpus = f"{found.tensor_parallel_size} x " if found.tensor_parallel_size > 1 else ""
    title = (
        f"{found.model} on {gpus}{found.gpu}, {found.batch_size:,} requests of "
        f"{found.context_len:,} tokens\n"
    )
    hbm = found.peak_flops_per_s / found.ridge_point
    lines = [
        f"\nridge point {found.ridge_point:,.0f} FLOP/B: {rate(found.peak_flops_per_s)}FLOP/s "
        f"({found.arithmetic}) over {rate(hbm)}B/s; KV in {found.kv_cache_dtype}",
        _from_which_batch(found),
    ]
    memory = f"weights and KV of the batch take {gib(found.decode_memory_bytes)}"
    have = f"the {gib(found.gpu_memory_bytes)} that CUDA shows"
    lines.append(f"{memory} of {have}" if found.fits else f"{memory}: more than {have}")
    notes = Text("\nAssumed: " + "; ".join(found.assumptions) + ".", style="dim")
    said = Text("\n".join(lines) + "\n")
    return Group(Text(title, style="bold"), _work(found), said, _levels(found), notes)


def _work(found: Roofline) -> Table:
    headings = ("", "", "TFLOP", "GB", "FLOP/B", "bound by", "ideal", "modelled", "MFU %", "MBU %")
    rows: list[tuple[str, ...] | None] = []
    for row in found.rows:
        if row.phase == "decode" and row.part == "GEMMs":
            rows.append(None)
        rows.append(
            (
                row.phase,
                row.part,
                _amount(row.flops / 1e12),
                _amount(row.num_bytes / 1e9),
                f"{row.intensity:,.1f}",
                row.bound,
                milliseconds(1e3 * row.ideal_seconds),
                milliseconds(1e3 * row.seconds),
                percent(row.mfu),
                percent(row.mbu),
            )
        )
    return plain_table(headings, rows, "LLR", padding=(0, 1, 0, 0))


def _amount(value: float) -> str:
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _from_which_batch(found: Roofline) -> str:
    said: list[str] = []
    for part, batch in found.compute_bound_batch_size.items():
        start = f"{part} of decodes become compute-bound" if not said else f"{part} of decodes"
        if batch is None:
            said.append(f"{start} at no batch size")
        elif batch == 1:
            said.append(f"{start} at every batch size")
        else:
            said.append(f"{start} from {batch:,} requests on")
    return ", ".join(said)


def _levels(found: Roofline) -> Table:
    headings = ("memory", "capacity", "bandwidth", "latency", "limits below", "")
    rows = [
        (
            level.name,
            _size(level.capacity_bytes),
            f"{rate(level.bandwidth_bytes_per_s)}B/s",
            _latency(level.latency_s),
            f"{found.level_intensity(level):,.0f} FLOP/B",
            level.source,
        )
        for level in found.levels
    ]
    return plain_table(headings, rows, "LRRRRl", padding=(0, 1, 0, 0))


def _size(num_bytes: float | None) -> str:
    if num_bytes is None:
        return "-"
    return f"{num_bytes / 2**20:,.1f} MiB" if num_bytes < 2**30 else gib(num_bytes)


def _latency(seconds: float) -> str:
    return f"{seconds * 1e9:,.0f} ns" if seconds < 1e-6 else f"{seconds * 1e6:,.0f} us"
