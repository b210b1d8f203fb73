"""Errors a user can cause: one line that says what, where and what is allowed."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Choices that an error still spells out.
MOST_SHOWN = 24


class FieldError(ValueError):
    """A wrong value of a configuration field; the command line names the flag instead."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field} {problem}")
        self.field = field
        self.problem = problem


def unknown_name(what: str, name: str, choices: Iterable[str]) -> ValueError:
    """Build the error for a name that is not in a registry or catalogue, with near ones.

    Examples
    --------
    >>> unknown_name("eviction policy", "lur", ["lru", "fifo"])
    ValueError("unknown eviction policy 'lur'; did you mean lru? (one of: fifo, lru)")
    """
    options = sorted(choices)
    near = get_close_matches(name.lower(), options, n=3, cutoff=0.5)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    if len(options) > MOST_SHOWN:
        where = "kvsim run --help" if what == "option" else f"kvsim list {what.lower()}s"
        return ValueError(f"unknown {what} {name!r}{hint} ({where} shows all)")
    return ValueError(f"unknown {what} {name!r}{hint} (one of: {', '.join(options)})")
