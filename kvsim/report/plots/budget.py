"""Figures of memory budgets: of serving and of training."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from kvsim.report.colours import LINES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.budget.capacity import Capacity
    from kvsim.training.memory import TrainingMemory

TRAINING_PARTS = ("weights", "gradients", "optimizer", "activations", "workspace")


def capacity(found: Capacity) -> Figure:
    """Draw the parts of one GPU's memory when a model is served, KV last."""
    figure = Figure(figsize=(7, 2.2), layout="constrained")
    axes = figure.subplots()
    left = 0.0
    parts = {name: size for name, size in found.budget_bytes.items() if name != "total"}
    for (name, size), colour in zip(parts.items(), cycle(LINES), strict=False):
        width = size / 2**30
        label = f"{name.replace('_', ' ')} {width:.2f}"
        axes.barh([0], [width], left=left, color=colour, height=0.6, label=label)
        left += width
    total = found.budget_bytes["total"] / 2**30
    axes.axvline(total, color="0.2", linestyle="--", linewidth=1)
    axes.set_yticks([])
    axes.set_xlim(0, 1.02 * max(left, total))
    axes.set_xlabel(f"GiB on one GPU (dashed: the {total:.2f} limit)")
    figure.suptitle(f"{found.model} on {found.gpu}: {found.num_gpu_blocks:,} blocks", fontsize=9)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    return figure


def training_memory(budgets: Mapping[str, TrainingMemory]) -> Figure:
    """Draw one bar per training budget, by component, and the memory of the GPU as a line."""
    figure = Figure(figsize=(7, 1.6 + 0.4 * len(budgets)), layout="constrained")
    axes = figure.subplots()
    names, found = list(budgets), list(budgets.values())
    left = np.zeros(len(found))
    for part, colour in zip(TRAINING_PARTS, LINES, strict=False):
        widths = np.array([getattr(one, f"{part}_bytes") / 2**30 for one in found])
        axes.barh(range(len(found)), widths, left=left, color=colour, height=0.7, label=part)
        left += widths
    for memory_bytes in {one.gpu_memory_bytes for one in found}:
        axes.axvline(memory_bytes / 2**30, color="0.2", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(found)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("GiB on one GPU (dashed: its memory)")
    figure.legend(loc="outside lower center", ncols=len(TRAINING_PARTS), frameon=False, fontsize=8)
    return figure
