"""kvsim's own trace files: one row per request, columns named as the arrays of a Trace.

A file always has ``arrival_time``, ``num_prompt_tokens`` and ``num_output_tokens``; other columns
only if some value differs from the default. Five columns hold lists: ``segments`` of triples
``[content_id, start, num_tokens]``, ``accepted_drafts`` of counts, ``encoder_items`` of pairs
``[start, num_tokens]``, ``sample_output_tokens`` of lengths, and ``after`` of requests. In CSV,
lists are JSON texts. ``tenant`` holds numbers or names, ``ends_by`` texts. A trace that is written
and read back has the same digest, as floats are written with all their digits. ``workloads.load``
reads these files, and the public formats.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from kvsim.files import write_whole, writing
from kvsim.records.samples import ENDINGS

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Columns = dict[str, list[Any]]

REQUIRED = ("arrival_time", "num_prompt_tokens", "num_output_tokens")
#: Integer columns that are written only where some entry differs from this default.
DEFAULTS = {
    "priority": 0,
    "cache_salt": 0,
    "session_id": -1,
    "num_samples": 1,
    "lora_id": 0,
    "max_tokens": 0,
    "hint_priority": -1,
}
#: The same for columns of floats.
FLOATS = {"grammar_time": -1.0, "acceptance_rate": -1.0, "think_time": 0.0, "hint_ttl": -1.0}
#: Columns of lists, JSON text inside a CSV file.
LISTS = ("segments", "accepted_drafts", "encoder_items", "sample_output_tokens", "after")
OPTIONAL = (*DEFAULTS, *FLOATS, "output_content_id", "tenant", "ends_by", *LISTS)
#: A column that is read, but not written: the ids by which ``after`` refers to requests.
REQUEST_ID = "request_id"


def columns_of(trace: Trace) -> Columns:
    """Return the columns of a trace's file as lists of Python values, without defaults."""
    columns = {name: getattr(trace, name).tolist() for name in REQUIRED}
    for name, default in (DEFAULTS | FLOATS).items():
        values = getattr(trace, name)
        if (values != default).any():
            columns[name] = values.tolist()
    if (trace.output_content_id >= 0).all():  # by default all ids are negative
        columns["output_content_id"] = trace.output_content_id.tolist()
    if trace.has("tenant"):
        named = trace.has("tenant_names")
        rows = range(len(trace))
        columns["tenant"] = [trace.tenant_of(k) for k in rows] if named else trace.tenant.tolist()
    if trace.has_segments:
        arrays = (trace.segment_content_id, trace.segment_start, trace.segment_num_tokens)
        columns["segments"] = _cut(np.stack(arrays, axis=1), trace.segment_offsets)
    if trace.has("accepted_drafts"):
        columns["accepted_drafts"] = _cut(trace.accepted_drafts, trace.accept_offsets)
    if trace.has("ends_by"):
        columns["ends_by"] = [ENDINGS[code] for code in trace.ends_by.tolist()]
    if trace.has("sample_output_tokens"):
        columns["sample_output_tokens"] = _cut(trace.sample_output_tokens, trace.sample_offsets)
    if trace.has("item_start"):
        pairs = np.stack([trace.item_start, trace.item_num_tokens], axis=1)
        columns["encoder_items"] = _cut(pairs, trace.item_offsets)
    if trace.has("after"):
        columns["after"] = _cut(trace.after, trace.after_offsets)
    return columns


def _cut(values: NDArray[Any], offsets: NDArray[Any]) -> list[Any]:
    listed = values.tolist()
    return [listed[a:b] for a, b in pairwise(offsets.tolist())]


def _write_csv(columns: Columns, file: IO[bytes]) -> None:
    for name in LISTS:
        if name in columns:
            texts = [json.dumps(s, separators=(",", ":")) for s in columns[name]]
            columns = {**columns, name: texts}
    with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def _write_jsonl(columns: Columns, file: IO[bytes]) -> None:
    with io.TextIOWrapper(file, encoding="utf-8", newline="") as text:
        for row in zip(*columns.values(), strict=True):
            text.write(json.dumps(dict(zip(columns, row, strict=True))) + "\n")


def _write_parquet(columns: Columns, file: IO[bytes]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table(columns), file)


def _gzipped(write: Callable[[Columns, IO[bytes]], None]) -> Callable[[Columns, IO[bytes]], None]:
    def write_gzip(columns: Columns, file: IO[bytes]) -> None:
        # The header gets neither name nor time, so that equal traces make equal files.
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
            write(columns, cast("IO[bytes]", packed))

    return write_gzip


_WRITERS = {
    ".csv": _write_csv,
    ".csv.gz": _gzipped(_write_csv),
    ".jsonl": _write_jsonl,
    ".jsonl.gz": _gzipped(_write_jsonl),
    ".parquet": _write_parquet,
}


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace in the format of the suffix. The file appears whole or not at all.

    Parameters
    ----------
    trace : the requests to write
    path : ends in .csv, .csv.gz, .jsonl, .jsonl.gz or .parquet

    Raises
    ------
    ValueError
        If the suffix is another one, or the path cannot be written.
    """
    path = Path(path)
    suffix = next((s for s in _WRITERS if path.name.lower().endswith(s)), None)
    if suffix is None:
        raise ValueError(f"{path}: a trace's file name must end in one of {', '.join(_WRITERS)}")
    columns = columns_of(trace)
    with writing(path):
        write_whole(path, lambda file: _WRITERS[suffix](columns, file))
