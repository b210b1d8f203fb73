"""Errors a user can cause: one line that says what, where and what is allowed."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

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
