"""Readers of trace files; the columns of a file, not its name, determine the format."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.registry import parse_spec
from kvsim.trace.columns import RowError
from workloads.generators import streams
from workloads.readers.formats import formats, reader, recognise
from workloads.readers.source import open_source
from workloads.sessions import plan

if TYPE_CHECKING:
    from kvsim.trace import Trace
    from workloads.draft import Draft
    from workloads.readers.table import Table

__all__ = ["Loaded", "formats", "load", "read", "reader", "split_options"]


@dataclass(frozen=True)
class Loaded:
    """A trace, and notes on its reading.

    Attributes
    ----------
    trace : the requests
    format : name of the format, one of ``formats()``
    notes : sentences for the user: rows dropped, lengths estimated, times drawn
    has_times : whether the file says when requests arrived
    """

    trace: Trace
    format: str
    notes: tuple[str, ...]
    has_times: bool


def load(
    path: str | Path, *, request_rate: float | None = None, seed: int = 0, **options: Any
) -> Trace:
    """Read a trace file.

    The format is recognised by the file's columns or keys; gzip is undone by itself. A file without
    arrival times (ShareGPT, vLLM's custom prompts) puts every request at time 0. With a
    ``request_rate``, sessions get Poisson starts at that rate over their mean number of turns, and
    each further turn follows its predecessor by the time to answer it and an exponential think
    time, so that turns keep their order and mingle with other sessions as in a real service.
    :func:`read` also reports what was dropped, estimated or drawn.

    Parameters
    ----------
    path : CSV, JSON lines, a JSON array (each also gzipped) or Parquet
    request_rate : mean requests per second, optional
        A trace with times is squeezed or stretched to this rate and starts at 0; ``inf`` sends
        everything at time 0.
    seed : for times that have to be drawn
    **options : of the format; see the reader's function in ``workloads.readers``

    Raises
    ------
    ValueError
        In one line: the file, the line, what is wrong and what is allowed.
    """
    return read(path, request_rate=request_rate, seed=seed, **options).trace


def read(
    path: str | Path, *, request_rate: float | None = None, seed: int = 0, **options: Any
) -> Loaded:
    """Read a trace file, with notes on the reading; parameters and errors as in :func:`load`."""
    with open_source(path) as source:
        fmt = recognise(path, source.fields)
        names = [*fmt.required, *fmt.optional]
        table = source.table(names)
    draft = fmt.read_table(table, options)
    draft = replace(draft, places=draft.places or table.places)
    notes = [*draft.notes]
    unused = [name for name in source.fields if name not in names]
    if unused:
        notes.append(f"not used: {', '.join(unused)}")
    has_times = draft.arrival_time is not None
    if not has_times and request_rate is None:
        notes.append("no arrival times in this file: all requests arrive at time 0")
    elif not has_times and request_rate is not None:
        notes.append(f"arrival times drawn: Poisson, {request_rate:g} requests/s, seed {seed}")
        draft = plan(draft, request_rate, streams(seed, 1)[0])
    trace = _build(draft, table)
    if has_times and request_rate is not None:
        trace = trace.with_request_rate(request_rate)
    return Loaded(trace, fmt.name, tuple(notes), has_times)


def split_options(text: str) -> tuple[str, dict[str, Any]]:
    """Return a file and the options of its format, from ``FILE[+KEY=VALUE]...``.

    An existing file with a ``+`` in its name is taken as it is.
    """
    if "+" not in text or Path(text).exists():
        return text, {}
    name, options = parse_spec(text)
    return name, {key: True if value is None else value for key, value in options.items()}


def options_of(path: str | Path) -> list[str]:
    """Return the options of a file's format."""
    with open_source(path) as source:
        return recognise(path, source.fields).options


def _build(draft: Draft, table: Table) -> Trace:
    try:
        return draft.build()
    except RowError as error:
        assert draft.places is not None
        place = f"{table.path}, {table.unit} {draft.places[error.row]}"
        raise ValueError(f"{place}: {error.name} {error.reason}") from None
    except ValueError as error:
        raise ValueError(f"{table.path}: {error}") from None
