"""The raw columns of a trace file, and the one place where cells become checked numbers.

Every reader gets a :class:`Table` of just the columns it asked for and turns them into a draft.
An error in a cell is reported with the file, the line, the file's own name of the column and the
allowed values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from kvsim.trace import MAX_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

T = TypeVar("T")

MIN_INT = -(2**63)

#: Exceptions from parsing a cell of the wrong kind: a text, a null, a number of 400 digits, a nest.
_REFUSED = (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Table:
    """Columns of raw cells: texts from CSV, any JSON value from JSONL, None if a key is missing.

    Attributes
    ----------
    path : the file, for errors
    columns : by name, one cell per row; optional columns the file lacks are absent
    places : number of each row in the file, as ``unit`` counts them
    unit : "line" of a text, "entry" of a JSON array or "row" of a Parquet file
    """

    path: str
    columns: Mapping[str, Sequence[Any]]
    places: Sequence[int]
    unit: str = "line"

    @classmethod
    def of_records(
        cls,
        path: str,
        records: Iterable[Mapping[str, Any]],
        names: Iterable[str],
        places: Sequence[int],
        unit: str,
    ) -> Table:
        """Select columns from records; a column that no record has is left out."""
        records = list(records)
        columns = {name: [record.get(name) for record in records] for name in names}
        return cls.of_columns(path, columns, places, unit)

    @classmethod
    def of_columns(
        cls, path: str, columns: Mapping[str, Sequence[Any]], places: Sequence[int], unit: str
    ) -> Table:
        """Leave out columns that have no value anywhere."""
        present = {k: v for k, v in columns.items() if any(cell is not None for cell in v)}
        return cls(path, present, places, unit)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def error(self, row: int, what: str) -> ValueError:
        """Return the error that names the file and the place of a row."""
        return ValueError(f"{self.path}, {self.unit} {self.places[row]}: {what}")

    def keep(self, rows: Sequence[bool]) -> Table:
        """Return the rows with a true entry, with their line numbers in the file."""
        columns = {name: list(compress(cells, rows)) for name, cells in self.columns.items()}
        return replace(self, columns=columns, places=list(compress(self.places, rows)))

    def convert(self, name: str, parse: Callable[[Any], T], allowed: str) -> list[T]:
        """Parse a column; ``parse`` fails on a cell it refuses."""
        cells = self.columns.get(name)
        if cells is None:
            raise self.error(0, f"{name} is missing")
        parsed: list[T] = []
        try:
            for cell in cells:
                parsed.append(parse(cell))  # noqa: PERF401 - its length tells which cell failed
        except _REFUSED:
            cell = cells[len(parsed)]
            raise self.error(len(parsed), _complaint(name, cell, allowed)) from None
        return parsed

    def records(self, name: str, parse: Callable[[Mapping[str, Any]], T], allowed: str) -> list[T]:
        """Parse whole rows; a failure is reported for the column of this name."""
        names = list(self.columns)
        rows = [
            dict(zip(names, row, strict=True)) for row in zip(*self.columns.values(), strict=True)
        ]
        return replace(self, columns={name: rows}).convert(name, parse, allowed)

    def floats(self, name: str, allowed: str = "a finite number of at least 0") -> list[float]:
        """Return a column of times."""
        return self.convert(name, _at_least_zero, allowed)

    def since_first(self, name: str, ticks: Sequence[float], per_second: float) -> list[float]:
        """Return clock readings of a column as seconds after the first, checking their order."""
        for row, (before, after) in enumerate(pairwise(ticks), 1):
            if after < before:
                what = f"{name} is earlier than in the row before (sort the trace by {name})"
                raise self.error(row, what)
        return [(tick - ticks[0]) / per_second for tick in ticks]

    def ints(self, name: str, least: int = 0, empty: int | None = None) -> list[int]:
        """Return a column of whole numbers from ``least`` on, with a value for empty cells."""
        allowed = f"from {least}" if least > MIN_INT else "from -2**63"
        return self._whole(name, least, 2**63 - 1, f"{allowed} to 2**63 - 1", empty)

    def tokens(self, name: str, empty: int | None = None) -> list[int]:
        """Return a column of lengths, each 1 to ``MAX_TOKENS``."""
        return self._whole(name, 1, MAX_TOKENS, f"from 1 to {MAX_TOKENS:,}", empty)

    def _whole(
        self, name: str, least: int, most: int, allowed: str, empty: int | None
    ) -> list[int]:
        def parse(cell: Any) -> int:
            number = empty if empty is not None and cell in ("", None) else whole(cell)
            if not least <= number <= most:
                raise ValueError
            return number

        return self.convert(name, parse, f"a whole number {allowed}")

    def zeros(self, name: str) -> list[bool]:
        """Return True for each cell of a column that is 0."""
        return [_is_zero(cell) for cell in self.columns.get(name, ())]


def whole(cell: Any) -> int:
    """Return a cell as an integer; ``12.0`` is one, ``12.5``, ``true`` and ``nan`` are not."""
    if type(cell) is int:
        return cell
    if isinstance(cell, str):
        _refuse_python_digits(cell)
        try:
            return int(cell)
        except ValueError:
            cell = float(cell)
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    raise ValueError


def _refuse_python_digits(cell: str) -> None:
    """Refuse numbers that only Python accepts: 1_000, and the digits of other scripts."""
    if "_" in cell or not cell.isascii():
        raise ValueError


def _is_zero(cell: Any) -> bool:
    try:
        return whole(cell) == 0
    except ValueError:
        return False


def _at_least_zero(cell: Any) -> float:
    if isinstance(cell, bool):
        raise TypeError
    if isinstance(cell, str):
        _refuse_python_digits(cell)
    number = float(cell)
    if not (math.isfinite(number) and number >= 0):
        raise ValueError
    return number


def _complaint(name: str, cell: Any, allowed: str) -> str:
    if cell is None:
        return f"{name} is missing, must be {allowed}"
    shown = repr(cell) if isinstance(cell, str) else str(cell)
    shown = shown if len(shown) <= 40 else f"{shown[:37]}..."
    return f"{name} is {shown}, must be {allowed}"
