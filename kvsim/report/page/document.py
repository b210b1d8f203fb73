"""An HTML document of sections: every name escaped, no external resources, only its own scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from kvsim.files import write_whole, writing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: The text shown, or the text and the exact value.
Cell = str | tuple[str, Any]
#: Scripts in the order of their dependencies.
SCRIPTS = ("tables",)
EXPLORER_SCRIPTS = (
    *("unpack", "history", "colours", "raster", "panels", "tree", "arrows", "explorer", "controls"),
)


def asset(name: str) -> str:
    """Return the text of a script, style sheet or HTML fragment of the pages."""
    return files("kvsim.report.page").joinpath("assets", name).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Table:
    """Headings and rows; a cell is the text shown, or the text and the exact value."""

    name: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def html(self) -> str:
        """Return the table, with buttons to copy and save it."""
        head = "".join(f"<th scope=col>{escape(one)}</th>" for one in self.headings)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        name = escape(self.name)
        buttons = "".join(
            f'<button type="button" class="{what}" data-table="{name}">{text}</button> '
            for what, text in (("csv", "CSV"), ("copy", "copy"))
        )
        return (
            f'<div class="scroll"><table id="{name}"><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div><p>{buttons}</p>"
        )


def _cell(cell: Cell) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(cell)}</td>"
    shown, value = cell
    exact = "" if value is None else escape(str(value))
    return f'<td data-value="{exact}">{escape(shown)}</td>'


@dataclass
class Document:
    """An HTML page, to which sections are added one by one.

    Parameters
    ----------
    title : title of the page
    under : line below the title
    """

    title: str
    under: str
    parts: list[str] = field(default_factory=list)
    data: Mapping[str, Any] | None = None

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def words(self, text: str, kind: str = "") -> None:
        of = f' class="{kind}"' if kind else ""
        self.parts.append(f"<p{of}>{escape(text)}</p>")

    def table(self, table: Table) -> None:
        self.parts.append(table.html())

    def command(self, text: str, name: str) -> None:
        """Add a command line that can be copied."""
        self.parts.append(
            f'<pre><code id="{escape(name)}">{escape(text)}</code></pre>'
            f'<p><button type="button" class="copy" data-table="{escape(name)}">copy</button></p>'
        )

    def figure(self, svg: str) -> None:
        self.parts.append(f'<div class="figure">{svg}</div>')

    def explorer(self, data: Mapping[str, Any]) -> None:
        """Add the memory-map explorer over its data."""
        self.data = data
        self.parts.append(asset("explorer.html"))
        self.parts += [f'<p class="note">This page is not complete: {escape(one)}.</p>'
                       for one in data["notes"]]  # fmt: skip

    def html(self) -> str:
        """Return the whole file."""
        names = SCRIPTS if self.data is None else (*SCRIPTS, *EXPLORER_SCRIPTS)
        script = '"use strict";\n(() => {\n' + "".join(asset(f"{n}.js") for n in names) + "})();\n"
        style = asset("page.css")
        policy = (
            "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
            f"script-src {_hash(script)}; style-src {_hash(style)}"
        )
        data = "" if self.data is None else (
            f'<script type="application/json" id="explorer-data">{_safe_json(self.data)}</script>\n'
        )  # fmt: skip
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="referrer" content="no-referrer">\n'
            f"<title>{escape(self.title)}</title>\n<style>{style}</style>\n</head>\n<body>\n"
            f'<header><h1>{escape(self.title)}</h1>\n<p class="under">{escape(self.under)}</p>'
            "</header>\n<main>\n" + "\n".join(self.parts) + "\n</main>\n"
            f"{data}<script>{script}</script>\n</body>\n</html>\n"
        )


def _hash(text: str) -> str:
    """Return the hash by which a content security policy allows a script or style."""
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _safe_json(value: object) -> str:
    """Return JSON escaped so that no name can end the HTML element around it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def write_page(text: str, path: Path) -> None:
    """Write a page, whole or not at all."""
    with writing(path):
        write_whole(path, lambda file: file.write(text.encode()))
