"""Errors a user can cause: one line that says what, where and what is allowed."""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Choices that an error still spells out, and where longer lists can be seen.
MOST_SHOWN = 24
SHOWN_BY = {
    "option": "kvsim run --help",
    "model": "kvsim list models",
    "GPU": "kvsim list gpus",
    "workload": "kvsim list workloads",
}


class FieldError(ValueError):
    """A wrong value of a configuration field; the command line names the flag instead."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def shown_numbers(numbers: Sequence[int]) -> str:
    """Return numbers as a text, the first ten of many.

    Examples
    --------
    >>> shown_numbers(range(12))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more'
    """
    more = f" and {len(numbers) - 10:,} more" if len(numbers) > 10 else ""
    return ", ".join(map(str, numbers[:10])) + more


def too_large(error: MemoryError | OverflowError) -> ValueError:
    """Build the error for memory that the system refuses, with its size where that is known."""
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    if shape is not None and dtype is not None:  # of NumPy
        size = math.prod(shape) * dtype.itemsize
        return ValueError(f"too large: {size:,} bytes for an array of {dtype}")
    said = " ".join(str(error).split())
    if isinstance(error, MemoryError) and said:
        return ValueError(f"too large: {said}")
    return ValueError("the configuration is too large for this machine's memory or numbers")


class UnfinishedError(RuntimeError):
    """A run that came to its end, or to a standstill, before all its requests did."""


def unknown_name(
    what: str, name: str, choices: Iterable[str], *, likeness: float = 0.5
) -> ValueError:
    """Build the error for a name that is not in a registry or catalogue, with near ones.

    ``likeness`` is how near a name must be to be suggested, 1 being the same.

    Examples
    --------
    >>> unknown_name("eviction policy", "lur", ["lru", "fifo"])
    ValueError("unknown eviction policy 'lur'; did you mean lru? (one of: fifo, lru)")
    """
    options = sorted(choices)
    near = get_close_matches(name.lower(), options, n=3, cutoff=likeness)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if what in SHOWN_BY and len(options) > MOST_SHOWN:
        return ValueError(f"unknown {what} {name!r}{hint} ({SHOWN_BY[what]} shows all)")
    return ValueError(f"unknown {what} {name!r}{hint} (one of: {', '.join(options)})")
