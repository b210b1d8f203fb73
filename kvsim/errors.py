"""Errors that a user can cause: one line with the mistake, its place and the allowed values."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Most choices that an error lists, and the commands that list more.
MOST_SHOWN = 24
SHOWN_BY = {
    "option": "kvsim run --help",
    "model": "kvsim list models",
    "GPU": "kvsim list gpus",
    "workload": "kvsim list workloads",
    "metric": "kvsim list metrics",
}


class FieldError(ValueError):
    """A wrong value of a configuration field, which the command line replaces by its flag."""

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(self.said_of(field))

    def said_of(self, name: str) -> str:
        """Return the message with another name of the field, such as its flag."""
        return f"{name}{':' if self.problem.startswith('unknown ') else ''} {self.problem}"


def shown_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as a text: at most ten, then the count of the rest.

    Examples
    --------
    >>> shown_numbers(range(12))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    more = f" and {len(numbers) - 10:,} more" if len(numbers) > 10 else ""
    return ", ".join(map(str, numbers[:10])) + more


def too_large(error: MemoryError | OverflowError) -> ValueError:
    """Build the error for a refused allocation of memory, with its size if known."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is not None and dtype is not None:  # of NumPy
        size = math.prod(shape) * dtype.itemsize
        return ValueError(f"too large: {size:,} bytes for an array of {dtype}")
    said = " ".join(str(error).split())
    if isinstance(error, MemoryError) and said:
        return ValueError(f"too large: {said}")
    return ValueError("the configuration is too large for this machine's memory or numbers")


class UnfinishedError(RuntimeError):
    """A run that ended, or made no progress, before all its requests ended."""


#: Message by type of pydantic's error; the context of the error fills the braces.
_MUST_BE = {
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "must be a whole number below 2**63",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be finite",
    "bool_parsing": "must be true or false",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "dataclass_type": "must be an object",
    "missing": "is missing",
    "extra_forbidden": "is not a field here",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "too_short": "must have at least {min_length} entries, has {actual_length}",
    "too_long": "must have at most {max_length} entries, has {actual_length}",
}


def must_be(error: Mapping[str, Any]) -> str:
    """Return pydantic's error for a value, in plain words.

    ``error`` is an entry of ``ValidationError.errors()``.

    Examples
    --------
    >>> must_be({"type": "greater_than_equal", "ctx": {"ge": 1}, "msg": ""})
    'must be at least 1'
    """
    kind, context = error["type"], error.get("ctx", {})
    if kind in _MUST_BE:
        return _MUST_BE[kind].format(**context)
    if kind == "value_error":  # raised by a validator of kvsim
        return str(context["error"])
    said = str(error["msg"])
    return said[:1].lower() + said[1:]


def unknown_name(what: str, name: str, choices: Iterable[str]) -> ValueError:
    """Build the error for a name that is not in a registry or catalogue, with similar names.

    Examples
    --------
    >>> unknown_name("eviction policy", "lur", ["lru", "fifo"])
    ValueError("unknown eviction policy 'lur'; did you mean lru? (one of: fifo, lru)")
    """
    options = sorted(choices)
    near = get_close_matches(name.lower(), options, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if what in SHOWN_BY and len(options) > MOST_SHOWN:
        return ValueError(f"unknown {what} {name!r}{hint} ({SHOWN_BY[what]} shows all)")
    return ValueError(f"unknown {what} {name!r}{hint} (one of: {', '.join(options)})")
