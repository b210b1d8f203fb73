"""A training budget for the terminal: a table with bars, whether it fits, and what would."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from kvsim.report.text import gib, percent

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kvsim.training.memory import TrainingMemory
    from kvsim.training.remedies import Remedy

#: Characters of the longest bar.
WIDTH = 24

PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "total")


def training_table(found: TrainingMemory) -> RenderableType:
    """Lay out bytes of one GPU as shares of its memory, what is offloaded, and remedies."""
    gpus = f"{found.num_gpus} x " if found.num_gpus > 1 else ""
    title = Text(f"Training {found.model} on {gpus}{found.gpu}\n", style="bold")
    table = _table("memory of one GPU", "", "  share of it")
    table.columns[1].justify = "right"
    widest = max(found.total_bytes, found.gpu_memory_bytes)
    for part in PARTS:
        if part == "total":
            table.add_section()
        size = getattr(found, f"{part}_bytes")
        share = percent(size / found.gpu_memory_bytes)
        bar = "█" * round(size / widest * WIDTH)
        table.add_row(part, f"  {gib(size)}", f"  {bar} {share} %")
    lines = [
        f"{found.num_trained_params:,} of {found.num_params:,} parameters trained, "
        f"global batch {found.global_batch_size:,}",
        *(f"{gib(size)} of {part} offloaded" for part, size in found.offloaded_bytes.items()),
    ]
    if found.transfer_seconds:
        lines.append(f"{_seconds(found.transfer_seconds)} of transfers per step")
    if found.communication_bytes:
        lines.append(f"{gib(found.communication_bytes)} sent to other replicas per step")
    if found.extra_compute:
        lines.append(f"{percent(found.extra_compute)} % more arithmetic, recomputed")
    notes: list[RenderableType] = [Text("\n".join(["", *lines])), _verdict(found)]
    if found.remedies:
        notes += [_remedies(found), _outcome(found)]
    notes.append(Text("Assumed: " + "; ".join(found.assumptions) + ".", style="dim"))
    return Group(title, table, *notes)


def _table(*headings: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0), show_edge=False)
    for heading in headings:
        table.add_column(heading)
    return table


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 1 else f"{value:,.1f} s"


def _verdict(found: TrainingMemory) -> Text:
    room = found.gpu_memory_bytes - found.total_bytes
    memory = f"the {gib(found.gpu_memory_bytes)} that CUDA shows"
    if found.fits:
        return Text(f"It fits: {gib(room)} of {memory} are left.", style="bold")
    if room >= 0:
        return Text("It does not fit: more is offloaded than there is space.", style="bold")
    return Text(f"It does not fit: {gib(-room)} above {memory}.", style="bold")


def _remedies(found: TrainingMemory) -> Table:
    table = _table("\nadding", "GiB per GPU", "  saves", "  costs")
    for column in table.columns[1:3]:
        column.justify = "right"
    for remedy in found.remedies:
        total, saved = (f"{size / 2**30:,.1f}" for size in (remedy.total_bytes, remedy.saved_bytes))
        table.add_row(f"{remedy.change}  ", total, f"  {saved}", f"  {_costs(remedy)}")
    return table


def _costs(remedy: Remedy) -> str:
    costs = []
    if remedy.extra_compute > 0:
        costs.append(f"{percent(remedy.extra_compute)} % more arithmetic")
    if remedy.communication_bytes > 0:
        costs.append(f"{gib(remedy.communication_bytes)} more to send")
    if remedy.transfer_seconds > 0:
        costs.append(f"{_seconds(remedy.transfer_seconds)} of transfers")
    if "precision" in remedy.options or "optimizer" in remedy.options:
        costs.append("fewer bits")
    return ", ".join(costs) or "none"


def _outcome(found: TrainingMemory) -> Text:
    last = found.remedies[-1]
    if last.fits:
        return Text("With all of these it fits.", style="bold")
    return Text(
        "Even so it does not fit: use more GPUs (tensor or pipeline parallel) or a smaller batch.",
        style="bold",
    )
