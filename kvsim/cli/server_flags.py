"""The flags of the engines' servers, and kvsim's treatment of each.

A table per engine, ``flags.tsv`` in its folder, names its source.
"""

from __future__ import annotations

import csv
from functools import cache
from typing import Literal, NamedTuple

from kvsim.engines.registry import get_engine

Does = Literal["modelled", "nothing", "time", "assumed", "refused"]
_OFF = "!"
#: Texts that mean that a value is not given.
_UNSET = ("", "none", "null", "unset")


class ServerFlag(NamedTuple):
    """One flag of a server.

    Parameters
    ----------
    names : spellings that the server accepts, the usual one first
    negatives : flags that switch it off
    takes : ``switch``, ``value`` or ``values``
    defaults : values without effect
    does : treatment by kvsim
    about : kvsim's own flag, the assumption that overrides the flag, or the reason of the refusal
    """

    names: tuple[str, ...]
    negatives: tuple[str, ...]
    takes: str
    defaults: tuple[str, ...]
    does: Does
    about: str

    @property
    def own(self) -> str:
        """The equivalent flag of kvsim."""
        return self.about or self.names[0]

    @property
    def is_on(self) -> bool:
        """Return True if a switch is on by default."""
        return "on" in self.defaults

    def is_default(self, value: str) -> bool:
        """Return True if a value equals the server's default."""
        if value.lower() in _UNSET or (value == "{}" and not self.defaults):
            return True
        return any(value == one or _number(value) == _number(one) for one in self.defaults)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@cache
def flags_of(server: str) -> dict[str, ServerFlag]:
    """Return a server's flags by name, negative forms included."""
    file = get_engine(server).flags or get_engine(None).flags
    assert file is not None
    lines = [line for line in file.read_text("utf-8").splitlines() if not line.startswith("#")]
    found: dict[str, ServerFlag] = {}
    for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        words = row["flag"].split()
        flag = ServerFlag(
            names=tuple(word for word in words if not word.startswith(_OFF)),
            negatives=tuple(word[1:] for word in words if word.startswith(_OFF)),
            takes=row["takes"],
            defaults=tuple(filter(None, row["default"].split("|"))),
            does=row["kvsim"],  # type: ignore[arg-type]
            about=row["about"],
        )
        found |= dict.fromkeys((*flag.names, *flag.negatives), flag)
    return found
