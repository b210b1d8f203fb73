"""A roofline for the terminal: what limits each kind of work, and what each memory asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvsim.report.text import gib, milliseconds, percent, rate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvsim.roofline.intensity import Roofline


def roofline_tables(found: Roofline) -> RenderableType:
    """Lay out work by phase and part, what follows from it, and the memory hierarchy."""
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


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _work(found: Roofline) -> Table:
    table = _table(
        "", "", "TFLOP", "GB", "FLOP/B", "bound by", "ideal", "modelled", "MFU %", "MBU %"
    )
    for column in table.columns[:2]:
        column.justify = "left"
    for row in found.rows:
        if row.phase == "decode" and row.part == "GEMMs":
            table.add_section()
        table.add_row(
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
    return table


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
    table = _table("memory", "capacity", "bandwidth", "latency", "limits below", "")
    table.columns[0].justify = table.columns[5].justify = "left"
    table.columns[5].no_wrap = False
    for level in found.levels:
        size = level.capacity_bytes
        small = size is not None and size < 2**30
        table.add_row(
            level.name,
            "-" if size is None else f"{size / 2**20:,.1f} MiB" if small else gib(size),
            f"{rate(level.bandwidth_bytes_per_s)}B/s",
            _latency(level.latency_s),
            f"{found.level_intensity(level):,.0f} FLOP/B",
            level.source,
        )
    return table


def _latency(seconds: float) -> str:
    return f"{seconds * 1e9:,.0f} ns" if seconds < 1e-6 else f"{seconds * 1e6:,.0f} us"
