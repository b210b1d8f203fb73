"""The notes of one run or of several runs, for every command and page.

:mod:`kvsim.engine.notes` and :mod:`kvsim.fleet.notes` write them: the basis of a run's numbers, and
options without effect. A run stores its notes in its provenance.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Most runs that a note names one by one.
MOST_NAMED = 3
_NUMBER = re.compile(r"\d[\d.,]*")


def notes_of(provenance: Mapping[str, Any]) -> list[str]:
    said = list(provenance.get("notes", ()))
    reason = provenance.get("reason")
    if reason and reason != ASKED:
        said.append(f"runs in plain Python, 23 to 434 times slower (measured): {reason}")
    return said


#: The reason for plain Python if the configuration selects it.
ASKED = "asked for"


def add_notes(provenance: dict[str, Any], said: Iterable[str]) -> None:
    """Add notes on the requests to a run's provenance. Mutates."""
    provenance["notes"] = list(dict.fromkeys([*provenance.get("notes", ()), *said]))


def merged(several: Iterable[Sequence[str]]) -> list[str]:
    """Return the notes of several runs of one configuration.

    Notes that differ only in numbers are represented by the first of them.

    Examples
    --------
    >>> merged([["3 times a request began anew"], ["4 times a request began anew", "new"]])
    ['3 times a request began anew', 'new']
    """
    found: dict[str, str] = {}
    for notes in several:
        for note in notes:
            found.setdefault(_NUMBER.sub("#", note), note)
    return list(found.values())


def _what_they_share(names: Sequence[str], every: Sequence[str]) -> str | None:
    """Return an ``option=value`` that exactly these runs have; None if there is none.

    Examples
    --------
    >>> _what_they_share(["a=1, b=1", "a=1, b=2"], ["a=1, b=1", "a=1, b=2", "a=2, b=1"])
    'a=1'
    """
    for part in names[0].split(", "):
        if "=" in part and [name for name in every if part in name.split(", ")] == list(names):
            return part
    return None


def shared(named: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each note once, preceded by the names of its runs unless all runs have it.

    Examples
    --------
    >>> shared({"a": ["x", "y"], "b": ["y"]})
    ['a: x', 'y']
    """
    runs_of: dict[str, list[str]] = {}
    for name, notes in named.items():
        for note in notes:
            runs_of.setdefault(note, []).append(name)
    said = []
    for note, names in runs_of.items():
        begins_with_it = all(note.startswith(f"{name}:") for name in names)
        if len(names) == len(named) or begins_with_it:
            said.append(note)
        elif (option := _what_they_share(names, list(named))) is not None:
            said.append(f"{option}: {note}")
        elif len(names) <= MOST_NAMED:
            said.append(f"{'; '.join(names)}: {note}")
        else:
            said.append(f"{len(names):,} of {len(named):,}, the first {names[0]}: {note}")
    return said
