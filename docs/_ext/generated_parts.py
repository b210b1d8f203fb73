"""Fill the marks ``<!-- generated: KIND ... -->`` of the pages from the code, as the site is read.

- ``table NAME [SECTION]``: a table of :data:`tables.TABLES`;
- ``fields NAME``: the names of :data:`names.NAMES`, with their meanings in
  ``docs/reference/fields/NAME.csv``;
- ``api NAME [MEMBER ...]``: a signature and its docstrings;
- ``commands``: the help of every command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PART = re.compile(r"^<!-- generated: (.+?) -->$", re.M)


def filled(text: str) -> str:
    """Return a page with the text that its marks stand for.

    Raises
    ------
    ValueError
        If a mark is unknown, an option has no help, or a name has no meaning.
    """
    return PART.sub(lambda part: _part(part[1].split()), text)


def _part(words: list[str]) -> str:
    from api import described
    from help_texts import commands
    from names import NAMES, table
    from tables import TABLES, markdown

    kind, *arguments = words
    if kind == "table":
        return markdown(TABLES[arguments[0]](*arguments[1:]))
    if kind == "fields":
        return table(arguments[0], NAMES[arguments[0]]())
    if kind == "api":
        return described(arguments[0], arguments[1:])
    if kind == "commands":
        return commands()
    raise ValueError(f"generated: {kind}: must be table, fields, api or commands")


def _read(_app: Sphinx, _docname: str, content: list[str]) -> None:
    content[0] = filled(content[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill pages before other extensions see them."""
    app.connect("source-read", _read, priority=100)
    return {"parallel_read_safe": True}
