"""The notebooks say what they print; ``python -m pytest`` itself runs them at a smaller size."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    return [
        "".join(output["text"] for output in cell.outputs if output.output_type == "stream")
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path) -> None:
    shown = nbformat.read(path, 4)
    ran = nbformat.read(path, 4)
    NotebookClient(ran, timeout=600, resources={"metadata": {"path": path.parent}}).execute()
    assert printed(ran) == printed(shown)
