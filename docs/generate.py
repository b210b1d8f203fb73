"""Fill the generated parts of the pages from the code: ``python docs/generate.py``.

A generated part stands between ``<!-- generated: KIND ... -->`` and ``<!-- end -->``:

- ``table NAME [SECTION]``: a table of :data:`tables.TABLES`;
- ``fields NAME``: the names of :data:`names.NAMES`, each with the meaning that the page gives it;
- ``api NAME [MEMBER ...]``: a signature and its docstrings;
- ``commands``: the help of every command.

``kvsim/options.py``, the types of the options, is made as well.
``--check`` changes nothing, names the pages that are out of date, and exits with 1.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_ext"))

PART = re.compile(r"^(<!-- generated: (.+?) -->\n)(.*?)^(<!-- end -->)$", re.M | re.S)


def filled(text: str) -> str:
    """Return a page with its generated parts made anew."""
    return PART.sub(lambda part: f"{part[1]}\n{_part(part[2].split(), part[3])}\n\n{part[4]}", text)


def _part(words: list[str], before: str) -> str:
    from api import described
    from help_texts import commands
    from names import table
    from tables import TABLES, markdown

    kind, *arguments = words
    if kind == "table":
        return markdown(TABLES[arguments[0]](*arguments[1:]))
    if kind == "fields":
        return table(arguments[0], before)
    if kind == "api":
        return described(arguments[0], arguments[1:])
    if kind == "commands":
        return commands()
    raise ValueError(f"generated: {kind}: must be table, fields, api or commands")


def stale_pages() -> dict[Path, str]:
    """Return the files that are out of date, each with what it should hold."""
    from options import FILE, options_file

    found = {}
    if options_file() != FILE.read_text(encoding="utf-8"):
        found[FILE] = options_file()
    for page in sorted(DOCS.rglob("*.md")):
        if {"_build", "notebooks"} & set(page.relative_to(DOCS).parts):
            continue
        text = page.read_text(encoding="utf-8")
        if "<!-- generated: " in text and (new := filled(text)) != text:
            found[page] = new
    return found


def main() -> int:
    """Rewrite the pages that are out of date, or name them."""
    stale = stale_pages()
    for page, text in stale.items():
        sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")
        if "--check" not in sys.argv:
            page.write_text(text, encoding="utf-8")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
