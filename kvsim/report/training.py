"""A training budget for the terminal: a table with bars, the verdict, and remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from kvsim.report.narrow import plain_table
from kvsim.report.text import gib, percent

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from kvsim.training.memory import TrainingMemory
    from kvsim.training.remedies import Remedy

#: Characters of the longest bar.
WIDTH = 24

PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "total")


def training_table(found: TrainingMemory) -> RenderableType:
    """Lay out bytes of one GPU as shares of its memory, offloaded bytes, and remedies."""
    gpus = f"{found.num_gpus} x " if found.num_gpus > 1 else ""
    title = Text(f"Training {found.model} on {gpus}{found.gpu}\n", style="bold")
    parts = [_part(found, part) for part in PARTS]
    rows = (*parts[:-1], None, parts[-1])
    table = plain_table(("memory of one GPU", "", "  share of it"), rows, "lrl")
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


def _part(found: TrainingMemory, part: str) -> tuple[str, ...]:
    size = getattr(found, f"{part}_bytes")
    bar = "█" * round(size / max(found.total_bytes, found.gpu_memory_bytes) * WIDTH)
    return part, f"  {gib(size)}", f"  {bar} {percent(size / found.gpu_memory_bytes)} %"


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 1 else f"{value:,.1f} s"


def _verdict(found: TrainingMemory) -> Text:
    room = found.gpu_memory_bytes - found.total_bytes
    memory = f"the {gib(found.gpu_memory_bytes)} that CUDA shows"
    if found.fits:
        return Text(f"It fits: {gib(room)} of {memory} are left.", style="bold")
    if room >= 0:
        return Text("It does not fit: the offloaded parts exceed the offload space.", style="bold")
    return Text(f"It does not fit: {gib(-room)} above {memory}.", style="bold")


def _remedies(found: TrainingMemory) -> Table:
    rows = [
        (
            f"{remedy.change}  ",
            f"{remedy.total_bytes / 2**30:,.1f}",
            f"  {remedy.saved_bytes / 2**30:,.1f}",
            f"  {_costs(remedy)}",
        )
        for remedy in found.remedies
    ]
    return plain_table(("\nadding", "GiB per GPU", "  saves", "  costs"), rows, "lrrl")


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
