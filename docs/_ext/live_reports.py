"""The directive ``{report} NAME``: a page that kvsim writes while the site is built, in a frame."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from kvsim.cli import main

if TYPE_CHECKING:
    from sphinx.application import Sphinx

#: The command of each report; ``--report`` is added.
REPORTS = {
    "paper": ("compare",),
    "storm": (
        *("run", "--workload", "multi-turn", "--model", "llama-3-8b", "--gpu", "l4"),
        *("--num-gpu-blocks-override", "250", "--max-model-len", "2048"),
        *("--num-requests", "60", "--request-rate", "4"),
    ),
    "day": (
        *("run", "--model", "qwen3-32b", "--gpu", "a100-80gb", "--max-model-len", "4096"),
        *("--num-gpu-blocks-override", "400", "--data-parallel-size", "3"),
        *("--workload", "azure-conv+arrival=diurnal+trough=0.1", "--request-rate", "0.02"),
        *("--num-requests", "1700", "--router", "least-outstanding"),
    ),
}
FOLDER = "reports"


class Report(SphinxDirective):
    """A report in a frame, and a link to it alone."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the frame; the page is written when the build has ended."""
        name = self.arguments[0]
        if name not in REPORTS:
            raise self.error(f"no report {name!r}; there are {', '.join(REPORTS)}")
        file = f"{FOLDER}/{name}.html"
        frame = (
            f'<p><a href="{file}">Open it alone</a></p>'
            f'<iframe src="{file}" title="report: {name}" width="100%" height="900"></iframe>'
        )
        return [nodes.raw("", frame, format="html")]


def write(app: Sphinx, failure: Exception | None) -> None:
    """Write all reports beside the pages."""
    if failure is not None or app.builder.format != "html":
        return
    folder = Path(app.outdir) / FOLDER
    folder.mkdir(exist_ok=True)
    for name, command in REPORTS.items():
        with redirect_stdout(io.StringIO()):  # the table is in the page
            main([*command, "--report", str(folder / f"{name}.html")])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("report", Report)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
