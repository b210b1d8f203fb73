"""The registry of trace formats: a format is a name, the columns it is known by, and a reader."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.registry import import_modules

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from workloads.draft import Draft
    from workloads.readers.table import Table

Reader = Callable[..., "Draft"]

_FORMATS: dict[str, Format] = {}


@dataclass(frozen=True)
class Format:
    """One kind of trace file.

    Attributes
    ----------
    name : what users call it
    required : columns or keys a file of this kind always has
    optional : further ones the reader uses where they are there
    read : makes a draft of a Table; its keyword parameters are the user's options
    """

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    read: Reader

    def read_table(self, table: Table, options: dict[str, Any]) -> Draft:
        """Read with a user's options.

        Raises
        ------
        ValueError
            For an option the format does not have, or a wrong cell.
        """
        parameters = inspect.signature(self.read).parameters.values()
        allowed = [p.name for p in parameters if p.default is not p.empty]
        for option in options:
            if option not in allowed:
                known = ", ".join(allowed) or "none"
                raise ValueError(
                    f"{table.path}: format {self.name!r} has no option {option!r} (it has: {known})"
                )
        return self.read(table, **options)


def reader(
    name: str, required: Sequence[str], optional: Sequence[str] = ()
) -> Callable[[Reader], Reader]:
    """Register the reader of a format; returns it unchanged."""

    def decorate(read: Reader) -> Reader:
        if name in _FORMATS:
            raise ValueError(f"trace format {name!r} is already registered")
        _FORMATS[name] = Format(name, tuple(required), tuple(optional), read)
        return read

    return decorate


def formats() -> list[str]:
    """Return the names of all trace formats that can be read."""
    import_modules("workloads.readers")
    return sorted(_FORMATS)


def recognise(path: object, fields: Iterable[str]) -> Format:
    """Return the format whose columns a file has; of several, the one that asks for most.

    Raises
    ------
    ValueError
        Naming the columns found and those of every format.
    """
    found = list(fields)
    known = [_FORMATS[name] for name in formats()]
    fitting = [f for f in known if set(f.required) <= set(found)]
    if fitting:
        return max(fitting, key=lambda f: len(f.required))
    if {"ttfts", "itls"} & set(found) or {"mean_ttft_ms", "request_throughput"} <= set(found):
        raise ValueError(
            f"{path}: is a result of vllm bench serve, which says how fast requests were and not "
            "what they asked for; give the dataset it was run on, or any trace with arrival times "
            "and lengths"
        )
    shown = ", ".join(name if len(name) <= 40 else f"{name[:37]}..." for name in found[:12])
    shown += ", ..." if len(found) > 12 else ""
    listed = "; ".join(f"{f.name}: {', '.join(f.required)}" for f in known)
    raise ValueError(f"{path}: no known trace format has the columns {shown} (known: {listed})")


def without_failed(table: Table, column: str, drop: bool) -> tuple[Table, tuple[str, ...]]:
    """Leave out requests without output, failures in logs of real services.

    Returns
    -------
    The table without them, and a note saying how many they were. With ``drop`` False the table is
    as it was, and the reader will refuse the first of them.
    """
    failed = table.zeros(column) if drop else []
    if not any(failed):
        return table, ()
    if all(failed):
        raise table.error(0, f"{column} is 0, as in every row: there is no request to keep")
    note = f"dropped {sum(failed):,} of {len(failed):,} requests: {column} is 0, a failed request"
    return table.keep([not f for f in failed]), (note,)
