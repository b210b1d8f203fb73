"""Make kvsim's docstrings ready for napoleon.

kvsim writes ``name : what it is`` under Parameters and Attributes, because signatures hold the
types. napoleon would take the words after the colon for a type.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SECTIONS = ("Parameters", "Attributes", "Other Parameters")
ENTRY = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*) : (.*)$")


def described(lines: list[str]) -> list[str]:
    """Move what stands behind a colon under its name, in the sections that list names."""
    found: list[str] = []
    inside = False
    for place, line in enumerate(lines):
        after = lines[place + 1] if place + 1 < len(lines) else ""
        if line and set(after.strip()) == {"-"} and len(after.strip()) >= 3:
            inside = line.strip() in SECTIONS
        entry = ENTRY.match(line) if inside else None
        if entry is None:
            found.append(line)
        else:
            found += [entry[1], f"    {entry[2]}"]
    return found


#: Longer signatures tell nobody anything; the docstring lists the parameters.
LONGEST_SIGNATURE = 400


def _shorten(
    _app: Sphinx, what: str, _name: str, _obj: Any, _opts: Any, signature: str | None, result: Any
) -> tuple[str, Any] | None:
    is_long = what == "class" and len(signature or "") > LONGEST_SIGNATURE
    return ("(...)", result) if is_long else None


def _process(_app: Sphinx, _what: str, _name: str, _obj: Any, _opts: Any, lines: list[str]) -> None:
    lines[:] = described(lines)


def setup(app: Sphinx) -> dict[str, bool]:
    """Run before napoleon, whose priority is 500."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-signature", _shorten)
    return {"parallel_read_safe": True}
