"""The site is true: it builds without a warning, its links lead somewhere, what it shows runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from documents import DOCS, PAGES, README, ROOT, anchors, blocks, links, run_page, target

WHOLE = [README, *PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]
NOTES = [ROOT / "DECISIONS.md", ROOT / "CHANGELOG.md"]
SHOWN = [path for path in PAGES if any(b.language in ("bash", "python") for b in blocks(path))]
SHOWN.remove(
    DOCS / "data.md"
)  # its commands want public files; test_sample.py runs them on samples
#: Pages that take more than two seconds: plain Python, figures, both engines.
SLOW = ("own-allocator", "own-parts", "results", "record-and-replay", "tutorial", "waste", "index")
#: Few are enough to see that a command runs; plain Python serves some of them.
NUM_REQUESTS = 20


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_readme_is_a_page_and_not_a_book() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 130
    assert len(text.split()) < 1000


@pytest.mark.parametrize("path", [*WHOLE, *NOTES], ids=name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for file, anchor in links(path):
        found = target(path, file)
        assert found.exists(), f"{name(path)}: {file}"
        if anchor:
            assert anchor in anchors(found), f"{name(path)}: {file}#{anchor}"


def test_the_reference_explains_every_name_that_the_code_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    from names import NAMES, meanings  # type: ignore[import-not-found]

    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    explained = re.findall(r"^```\{fields\} (\S+)\n(.*?)^```", text, re.M | re.S)
    assert {kind for kind, _ in explained} == NAMES.keys()
    for kind, lines in explained:
        told, known = meanings(lines.splitlines()), NAMES[kind]()
        assert all(told.values()), kind
        assert told.keys() == known.keys(), kind


def page(path: Path) -> Any:
    marks = [pytest.mark.slow] if path.stem in SLOW else []
    return pytest.param(path, marks=marks, id=name(path))


@pytest.mark.long
@pytest.mark.parametrize("path", [page(path) for path in SHOWN])
def test_what_a_page_shows_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_page(path, tmp_path, monkeypatch, NUM_REQUESTS)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-b", "html"]
    done = subprocess.run(
        [*build, str(DOCS), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
