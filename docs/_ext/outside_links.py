"""Show links to files that the site does not hold as their text.

On GitHub they work; the site has no page for ``tests/data/README.md`` and the like.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

LINK = re.compile(r"\[([^\]]+)\]\(([^)#:\s]+)(#[^)\s]*)?\)")
DOCS = Path(__file__).resolve().parents[1]


def without_outside_links(text: str, folder: Path) -> str:
    """Replace links of a page in that folder which lead out of docs/."""

    def replaced(found: re.Match[str]) -> str:
        file = found[2]
        target = (DOCS / file[1:] if file.startswith("/") else folder / file).resolve()
        at_top = target.parent == DOCS.parent and (DOCS / target.name).exists()
        return found[0] if at_top or DOCS in target.parents else found[1]

    return LINK.sub(replaced, text)


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    if str(app.env.doc2path(docname)).endswith(".md"):
        content[0] = without_outside_links(content[0], (DOCS / docname).parent)


def _included(_app: Sphinx, path: Path, _parent: str, content: list[str]) -> None:
    content[0] = without_outside_links(content[0], (DOCS / path).resolve().parent)


def setup(app: Sphinx) -> dict[str, bool]:
    """Look at every page and every file that a page includes."""
    app.connect("source-read", _read)
    app.connect("include-read", _included)
    return {"parallel_read_safe": True}
