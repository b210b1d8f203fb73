"""A file's bytes: what kind of text it is, which columns or keys it has, and its rows.

The kind is told by content, never by name: gzip and Parquet by their first bytes, then ``{`` for
JSON lines, ``[`` for one JSON array, anything else is CSV with a header.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kvsim.files import read_bytes
from workloads.readers.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: Most requests of a file: their cells fill memory before the trace exists.
MAX_REQUESTS = 10_000_000


class Source(Protocol):
    """One opened file, before its format is known."""

    @property
    def fields(self) -> Sequence[str]:
        """Column names of the header, or keys of the first record."""

    def table(self, names: Sequence[str]) -> Table:
        """Return the columns of these names, as far as the file has them."""


def open_source(path: str | Path) -> Source:
    """Read a file whole and tell its kind.

    Raises
    ------
    ValueError
        If the file is missing, a directory, empty, damaged or not text.
    """
    data = _read_bytes(Path(path))
    if data[:4] == b"PAR1":
        return _ParquetSource(str(path), data)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise ValueError(f"{path}: is neither text (UTF-8) nor Parquet, gzipped or not")
    first = text.lstrip()[:1]
    if not first:
        raise ValueError(f"{path}: is empty")
    if first == "{":
        return _RecordSource(str(path), *_json_lines(str(path), text), unit="line")
    if first == "[":
        return _RecordSource(str(path), *_json_array(str(path), text), unit="entry")
    return _CsvSource(str(path), text)


def _read_bytes(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        what = f"cannot be read: {error.strerror}" if error.strerror else str(error)
        raise ValueError(f"{path}: {what}") from None


def _refuse_too_many(path: str, num_requests: int) -> None:
    if num_requests > MAX_REQUESTS:
        raise ValueError(f"{path}: holds more than {MAX_REQUESTS:,} requests; split it")


class _CsvSource:
    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._rows = csv.reader(io.StringIO(text, newline=""))
        with self._errors_named():
            self.fields = [name.strip() for name in next(self._rows)]
        twice = [name for name in self.fields if name and self.fields.count(name) > 1]
        if twice:
            raise ValueError(f"{path}, line 1: the column {twice[0]!r} is there twice")

    def table(self, names: Sequence[str]) -> Table:
        wanted = {name: self.fields.index(name) for name in names if name in self.fields}
        positions = list(wanted.values())
        columns: list[list[str]] = [[] for _ in wanted]
        lines: list[int] = []
        with self._errors_named():
            for row in self._rows:
                if not row:
                    continue
                if len(row) != len(self.fields):
                    cells = f"{len(row)} cells where the header has {len(self.fields)}"
                    raise ValueError(f"{self.path}, line {self._rows.line_num}: {cells}")
                for column, i in zip(columns, positions, strict=True):
                    column.append(row[i])
                lines.append(self._rows.line_num)
                _refuse_too_many(self.path, len(lines))
        if not lines:
            raise ValueError(f"{self.path}: has a header and no requests")
        return Table(self.path, dict(zip(wanted, columns, strict=True)), lines)

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        # One cell holds all segments of a request, which can pass the default of 128 KiB.
        limit = csv.field_size_limit(sys.maxsize)
        try:
            yield
        except csv.Error as error:
            line = self._rows.line_num
            raise ValueError(f"{self.path}, line {line}: is not valid CSV: {error}") from None
        finally:
            csv.field_size_limit(limit)


class _RecordSource:
    def __init__(self, path: str, records: list[Any], places: list[int], unit: str) -> None:
        self.path, self._records, self._places, self._unit = path, records, places, unit
        if not records:
            raise ValueError(f"{path}: holds no requests")
        for record, place in zip(records, places, strict=True):
            if not isinstance(record, dict):
                raise ValueError(f"{path}, {unit} {place}: must be a JSON object")
        self.fields = list(records[0])

    def table(self, names: Sequence[str]) -> Table:
        return Table.of_records(self.path, self._records, names, self._places, self._unit)


def _json_lines(path: str, text: str) -> tuple[list[Any], list[int]]:
    records, lines = [], []
    whole = io.StringIO(text, newline="\n")  # splitlines would cut at U+2028 too
    for number, line in enumerate(whole, 1):
        if line and not line.isspace():
            records.append(_json(line, f"{path}, line {number}"))
            lines.append(number)
            _refuse_too_many(path, len(lines))
    return records, lines


def _json_array(path: str, text: str) -> tuple[list[Any], list[int]]:
    records = _json(text, path)
    return records, list(range(1, len(records) + 1))


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}"
        raise ValueError(f"{where}: is not valid JSON: {error.msg} at {place}") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, a tower of brackets
        raise ValueError(f"{where}: is not valid JSON: {error}") from None


class _ParquetSource:
    def __init__(self, path: str, data: bytes) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self.path = path
        try:
            self._table = parquet.read_table(io.BytesIO(data))
        except (pa.ArrowException, OSError):
            raise ValueError(f"{path}: is a damaged or truncated Parquet file") from None
        self.fields: list[str] = self._table.column_names
        if len(self._table) == 0:
            raise ValueError(f"{path}: holds no requests")

    def table(self, names: Sequence[str]) -> Table:
        wanted = [name for name in names if name in self.fields]
        columns = {name: self._table.column(name).to_pylist() for name in wanted}
        return Table(self.path, columns, range(1, len(self._table) + 1), "row")
