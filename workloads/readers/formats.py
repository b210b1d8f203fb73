"""The registry of trace formats: a format is a name, its identifying columns, and a reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from kvsim.registry import convert_params, import_modules, parameter_names

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

    @property
    def options(self) -> list[str]:
        """Names of the options that a user may set."""
        return parameter_names(self.read)

    def read_table(self, table: Table, options: dict[str, Any]) -> Draft:
        """Read with a user's options; texts are converted to the types of the options.

        Raises
        ------
        ValueError
            For an option the format does not have, or a wrong cell.
        """
        label = f"{table.path}: format {self.name!r}"
        return self.read(table, **convert_params(label, self.read, options))


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


def known() -> list[Format]:
    return [_FORMATS[name] for name in formats()]


def recognise(path: object, fields: Iterable[str]) -> Format:
    """Return the format whose columns a file has; of several, the one that uses the most.

    Raises
    ------
    ValueError
        Naming the columns found and the nearest formats.
    """
    found = list(fields)
    fitting = [f for f in known() if set(f.required) <= set(found)]
    if fitting:
        return max(fitting, key=lambda f: (_used(f, found), len(f.required)))
    if {"mean_ttft_ms", "request_throughput"} <= set(found):
        raise ValueError(
            f"{path}: is a result of vllm bench serve or of SGLang's bench without its requests: "
            "save it with --save-detailed (vLLM) or --output-details (SGLang)"
        )
    raise ValueError(f"{path}: no known trace format has the {_shown(found)}; {_nearest(found)}")


def _used(form: Format, found: Sequence[str]) -> int:
    return len({*form.required, *form.optional} & set(found))


def _shown(found: Sequence[str], most: int = 6) -> str:
    """Return the columns of a file, as many as fit on a line."""
    shown = [name if len(name) <= 24 else f"{name[:21]}..." for name in found[:most]]
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"columns {', '.join(shown)}{more}"


def _nearest(found: Sequence[str]) -> str:
    """Name the nearest formats, and the columns that they need in addition."""
    own = ", ".join(_FORMATS["kvsim"].required)
    listed = f"(kvsim list trace-formats shows all; kvsim's own: {own})"
    every = known()
    lacking = {f.name: [c for c in f.required if c not in found] for f in every}
    ranked = sorted(every, key=lambda f: (len(lacking[f.name]) / len(f.required), f.name))
    near = [f.name for f in ranked if len(lacking[f.name]) < len(f.required)][:2]
    if not near:  # no column is right: perhaps some are nearly
        lower = [name.lower() for name in found]
        alike = {
            f.name: sum(bool(get_close_matches(c.lower(), lower, 1, 0.75)) for c in f.required)
            for f in every
        }
        near = [n for n in sorted(alike, key=lambda n: (-alike[n], n)) if alike[n]][:2]
    if not near:
        return f"none is similar {listed}"
    told = [f"{name} (lacks {', '.join(lacking[name])})" for name in near]
    return f"nearest: {'; '.join(told)} {listed}"


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
