"""The content of a file: its kind of text, its columns or keys, and its rows.

Content determines the kind, never the name: gzip and Parquet by their first bytes, then ``{`` for
JSON lines or one object over several lines, ``[`` for one JSON array, anything else is CSV with a
header.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import sys
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from kvsim.files import check_parquet, open_bytes
from workloads.readers.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


#: Most requests of a file: their cells fill memory before the trace exists.
MAX_REQUESTS = 10_000_000


class Source(Protocol):
    """One opened file, before its format is known."""

    @property
    def fields(self) -> Sequence[str]:
        """Column names in the header, or keys of the first record."""

    def table(self, names: Sequence[str]) -> Table:
        """Return the named columns that the file has; may be called once."""


@contextmanager
def open_source(path: str | Path) -> Iterator[Source]:
    """Open a file and detect its kind; rows are read on demand.

    Raises
    ------
    ValueError
        If the file is missing, a directory, empty, damaged or not text; some of it only once the
        rows are read.
    """
    name = str(path)
    try:
        with ExitStack() as opened:
            yield _source(name, opened.enter_context(open_bytes(Path(path))), opened)
    except OSError as error:
        what = f"cannot be read: {error.strerror}" if error.strerror else str(error)
        raise ValueError(f"{path}: {what}") from None
    except UnicodeDecodeError:
        raise _not_text(name) from None


def _source(path: str, file: io.BufferedReader, opened: ExitStack) -> Source:
    head: bytes = file.peek()
    if head[:4] == b"PAR1":
        return _ParquetSource(path, file.read())
    whole: IO[bytes] = file
    first = head.removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    if not first:  # space, as far as was looked
        whole = io.BytesIO(file.read())
        first = whole.getvalue().lstrip()[:1]
    if b"\0" in head:
        raise _not_text(path)
    if not first:
        raise ValueError(f"{path}: is empty")
    # The line ending depends on the format: lines of JSON end only at \n.
    end = "\n" if first in (b"{", b"[") else ""
    text = opened.enter_context(io.TextIOWrapper(whole, encoding="utf-8-sig", newline=end))
    if first == b"[":
        return _RecordSource(path, _json_array(path, text.read()), unit="entry")
    lines = _lines(path, text)
    if first == b"{":
        return _RecordSource(path, _json_objects(path, lines), unit="line")
    return _CsvSource(path, lines)


def _lines(path: str, text: io.TextIOWrapper) -> Iterator[str]:
    for line in text:
        if "\0" in line:
            raise _not_text(path)
        yield line


def _not_text(path: str) -> ValueError:
    return ValueError(f"{path}: is neither text (UTF-8) nor Parquet, gzipped or not")


def _refuse_too_many(path: str, num_requests: int) -> None:
    if num_requests > MAX_REQUESTS:
        raise ValueError(f"{path}: holds more than {MAX_REQUESTS:,} requests; split it")


class _CsvSource:
    def __init__(self, path: str, lines: Iterator[str]) -> None:
        self.path = path
        self._rows = csv.reader(lines)
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
    def __init__(self, path: str, records: Iterator[tuple[int, Any]], unit: str) -> None:
        self.path, self._unit = path, unit
        first = next(records, None)
        if first is None:
            raise ValueError(f"{path}: holds no requests")
        self._records = chain([first], records)
        self._check(*first)
        self.fields = list(first[1])

    def _check(self, place: int, record: Any) -> None:
        if not isinstance(record, dict):
            raise ValueError(f"{self.path}, {self._unit} {place}: must be a JSON object")

    def table(self, names: Sequence[str]) -> Table:
        columns: dict[str, list[Any]] = {name: [] for name in names}
        places: list[int] = []
        for place, record in self._records:
            self._check(place, record)
            places.append(place)
            _refuse_too_many(self.path, len(places))
            for name, cells in columns.items():
                cells.append(record.get(name))
        return Table.of_columns(self.path, columns, places, self._unit)


def _json_objects(path: str, lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """Yield the objects of JSON lines, or the one object that is written over several lines."""
    begun = list(islice(lines, 1))
    while begun and begun[-1].isspace():
        begun += islice(lines, 1)
    if begun and _is_opened(begun[-1]):
        text = "".join([*begun, *lines])
        return iter([(len(begun), _json(text, path))])
    return _json_lines(path, chain(begun, lines))


def _is_opened(line: str) -> bool:
    """Return True if a line starts an object that ends on a later line."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos >= len(line.rstrip()) and line.rstrip()[-1] in "{[,:"
    except (ValueError, RecursionError):
        pass
    return False


def _json_lines(path: str, lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(lines, 1):
        if line and not line.isspace():
            yield number, _json(line, f"{path}, line {number}")


def _json_array(path: str, text: str) -> Iterator[tuple[int, Any]]:
    return enumerate(_json(text, path), 1)


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
        from pyarrow import parquet

        self.path = path
        with self._errors_named():
            metadata = parquet.read_metadata(io.BytesIO(data))
            schema = metadata.schema.to_arrow_schema()
        self.fields: list[str] = schema.names
        self._num_rows: int = metadata.num_rows
        if self._num_rows == 0:
            raise ValueError(f"{path}: holds no requests")
        _refuse_too_many(path, self._num_rows)
        self._metadata, self._data = metadata, data
        self._texts = [name for name in schema.names if str(schema.field(name).type) == "string"]

    def table(self, names: Sequence[str]) -> Table:
        from pyarrow import parquet

        wanted = [name for name in names if name in self.fields]
        check_parquet(self._metadata, wanted)
        # A text that fills a column is one text, however often it is there.
        texts = [name for name in wanted if name in self._texts]
        with self._errors_named():
            file = parquet.ParquetFile(io.BytesIO(self._data), read_dictionary=texts)
            read = file.read(columns=wanted)
            columns = {name: _cells(read[name], name in texts) for name in wanted}
        return Table(self.path, columns, range(1, self._num_rows + 1), "row")

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            raise ValueError(f"{self.path}: is a damaged or truncated Parquet file") from None


def _cells(column: Any, is_text: bool) -> list[Any]:
    """Return the values of a column; equal texts are one object."""
    cells: list[Any] = []
    for chunk in column.chunks:
        if is_text:
            values = chunk.dictionary.to_pylist()
            cells += [None if k is None else values[k] for k in chunk.indices.to_pylist()]
        else:
            cells += chunk.to_pylist()
    return cells
