"""The directive ``from-code``: a table made from kvsim itself, so that it cannot be out of date.

``{from-code} NAME`` is one of :data:`tables.TABLES`. ``{fields} NAME`` holds one line
``name: meaning`` per name, and the build fails if those are not the names that the code has
(:data:`names.NAMES`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from docutils import nodes
from docutils.statemachine import StringList
from names import NAMES, meanings
from sphinx.util.docutils import SphinxDirective
from tables import TABLES, Rows, markdown

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class _Table(SphinxDirective):
    """Puts a table on the page by way of Markdown, so that cells may hold code and links."""

    required_arguments = 1
    optional_arguments = 1

    def rows(self) -> Rows:
        """Return the heading and the rows of the table."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Return the table's nodes."""
        self.env.note_reread()  # the code may have changed, even if the page has not
        box = nodes.container()
        text = markdown(self.rows()).splitlines()
        self.state.nested_parse(StringList(text, self.env.docname), self.content_offset, box)
        for table in box.findall(nodes.table):
            table["classes"].append("from-code")
        return box.children


class FromCode(_Table):
    """A table that kvsim alone says."""

    def rows(self) -> Rows:
        """Return what the function of that name finds in the code."""
        name, *section = self.arguments
        if name not in TABLES:
            raise self.error(f"no table {name!r}; there are {', '.join(TABLES)}")
        return TABLES[name](*section)


class Fields(_Table):
    """Names and meanings: the names are held against the code."""

    has_content = True

    def rows(self) -> Rows:
        """Return name, type and meaning, in the order of the code."""
        name = self.arguments[0]
        if name not in NAMES:
            raise self.error(f"no names {name!r}; there are {', '.join(NAMES)}")
        known = NAMES[name]()
        told = meanings(self.content)
        if told.keys() != known.keys():
            missing, unknown = known.keys() - told.keys(), told.keys() - known.keys()
            raise self.error(f"{name}: not told {sorted(missing)}, unknown {sorted(unknown)}")
        if any(known.values()):
            return [("name", "type", "meaning")] + [
                (f"`{n}`", kind, told[n]) for n, kind in known.items()
            ]
        return [("name", "meaning")] + [(f"`{n}`", told[n]) for n in known]


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("from-code", FromCode)
    app.add_directive("fields", Fields)
    return {"parallel_read_safe": True}
