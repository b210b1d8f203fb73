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


def laid_out(directive: SphinxDirective, rows: Rows) -> list[nodes.Node]:
    """Put a table on the page by way of Markdown, so that cells may hold code and links."""
    directive.env.note_reread()  # the code may have changed, even if the page has not
    box = nodes.container()
    text = StringList(markdown(rows).splitlines(), directive.env.docname)
    directive.state.nested_parse(text, directive.content_offset, box)
    for table in box.findall(nodes.table):
        table["classes"].append("from-code")
    return box.children


class FromCode(SphinxDirective):
    """A table that kvsim alone says."""

    required_arguments = 1
    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return what the function of that name finds in the code."""
        name, *section = self.arguments
        if name not in TABLES:
            raise self.error(f"no table {name!r}; there are {', '.join(TABLES)}")
        return laid_out(self, TABLES[name](*section))


class Fields(SphinxDirective):
    """Names and meanings: the names are held against the code."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return name, type and meaning, in the order of the code."""
        name = self.arguments[0]
        if name not in NAMES:
            raise self.error(f"no names {name!r}; there are {', '.join(NAMES)}")
        known = NAMES[name]()
        told = meanings(self.content)
        if told.keys() != known.keys():
            missing, unknown = known.keys() - told.keys(), told.keys() - known.keys()
            raise self.error(f"{name}: not told {sorted(missing)}, unknown {sorted(unknown)}")
        head, rows = ("name", "meaning"), [(f"`{n}`", told[n]) for n in known]
        if any(known.values()):
            head = ("name", "type", "meaning")
            rows = [(f"`{n}`", kind, told[n]) for n, kind in known.items()]
        return laid_out(self, [head, *rows])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("from-code", FromCode)
    app.add_directive("fields", Fields)
    return {"parallel_read_safe": True}
