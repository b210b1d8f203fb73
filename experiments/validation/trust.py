"""How far to trust which answer: the measured error by kind of question, worst first.

Reads what the other scripts wrote to docs/validation, each on cases that decided no constant, and
writes `trust.csv` beside them. The date is that of the record's last change.

    python -m experiments.validation.trust
"""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from experiments.validation.record import write_csv

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

RECORDS = Path(__file__).resolve().parents[2] / "docs" / "validation"
COLUMNS = ("question", "cases", "half within, %", "nine of ten within, %", "measured")
#: Errors of a point in the records of `validate_points`, by position.
POINT = {"TPOT": 2, "TTFT": 3, "throughput": 4}


class Question(NamedTuple):
    """A kind of question: errors in per cent, and the record that has them."""

    name: str
    errors: tuple[float, ...]
    record: str

    @property
    def quantiles(self) -> tuple[float, float]:
        """Return the median and the ninth decile of absolute errors."""
        half, most = np.quantile(np.abs(self.errors), [0.5, 0.9])
        return float(half), float(most)


def read(folder: Path, record: str) -> Any:
    return json.loads((folder / record).read_text("utf-8"))


def questions(folder: Path) -> Iterator[Question]:
    """Yield each kind of question with the errors of cases that decided no constant."""
    for engine, record in (
        ("vLLM", "validate_points.json"),
        ("SGLang", "validate_points_sglang.json"),
    ):
        points = read(folder, record)["points"].values()
        rows = [point for point in points if point[0] == "held out"]
        for name, position in POINT.items():
            errors = _numbers(row[position] for row in rows)
            yield Question(f"{name} of one {engine} server in a closed loop", errors, record)
    record = "validate_serving.json"
    runs = [run["errors_percent"] for run in read(folder, record)["runs"] if not run["fitted"]]
    for name in ("E2E", "TTFT"):
        errors = _numbers(run.get(name) for run in runs)
        yield Question(f"{name} of one vLLM server at a request rate", errors, record)
    record = "validate_kernels.json"
    errors = _numbers(row["median_percent"] for row in read(folder, record)["kernels"])
    yield Question("time of a kernel (medians by kind and card)", errors, record)
    record = "relatives.csv"
    with (folder / record).open(encoding="utf-8") as file:
        loops = list(csv.DictReader(file))
    for name in ("TPOT", "TTFT"):
        errors = _numbers(row[name] for row in loops)
        yield Question(f"{name} of a card without kernel tables, left out in turn", errors, record)
    record = "startup.csv"
    with (folder / record).open(encoding="utf-8") as file:
        errors = _numbers(row["error"] for row in csv.DictReader(file) if row["half"] == "other")
    yield Question("KV memory of a GPU before a run", errors, record)


def _numbers(found: Iterable[Any]) -> tuple[float, ...]:
    return tuple(float(one) for one in found if one is not None)


def table(folder: Path) -> list[dict[str, str]]:
    """Lay out the questions, the widest first."""
    rows = sorted(questions(folder), key=lambda question: -question.quantiles[0])
    return [
        dict(
            zip(
                COLUMNS,
                (
                    row.name,
                    str(len(row.errors)),
                    *(f"{number:.1f}" for number in row.quantiles),
                    changed(folder / row.record),
                ),
                strict=True,
            )
        )
        for row in rows
    ]


def changed(file: Path) -> str:
    """Return the date on which a file was last committed; empty outside a repository."""
    command = ("git", "log", "-1", "--format=%cs", "--", file.name)
    told = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    return told.stdout.strip()


def main() -> None:
    """Print and write the table."""
    rows = table(RECORDS)
    for row in rows:
        print("  ".join(row.values()))
    write_csv(RECORDS / "trust.csv", COLUMNS, (row.values() for row in rows))


if __name__ == "__main__":
    main()
