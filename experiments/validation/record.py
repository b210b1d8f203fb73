"""Output of an experiment: one JSON file and its pictures, or tables."""

from __future__ import annotations

import csv
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from experiments.validation.data import absent, is_sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    #: Draws on an empty figure.
    Draw = Callable[[Any], None]


def write(
    out: Path,
    name: str,
    found: Mapping[str, Any],
    pictures: Mapping[str, Draw],
    *,
    data: Path,
    sets: tuple[str, ...],
) -> None:
    """Write NAME.json and a PNG per picture into a folder, each whole or not at all.

    The file says which data it comes from, and no time: the same data give the same file.
    """
    import matplotlib.figure

    source = "the sample in tests/data" if is_sample(data) else "the whole"
    record = shown({"data": source, "absent": absent(data, sets), **found})
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        Path(scratch, f"{name}.json").write_text(text, encoding="utf-8")
        for picture, draw in pictures.items():
            figure = matplotlib.figure.Figure(layout="constrained")
            draw(figure)
            figure.savefig(Path(scratch, f"{picture}.png"), dpi=110, metadata={"Software": None})
        for path in Path(scratch).iterdir():
            path.replace(out / path.name)


def headed(title: str, texts: Iterable[str], figures: Iterable[str]) -> Table:
    """Return an empty table for the terminal; its columns of figures are aligned to the right."""
    table = Table(title=title, title_justify="left")
    for name in texts:
        table.add_column(name)
    for name in figures:
        table.add_column(name, justify="right")
    return table


def write_csv(path: Path, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a table with a line of headings."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])


def shown(value: Any) -> Any:
    """Round every float to four digits: more would only tell machines apart."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, dict):
        return {key: shown(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
