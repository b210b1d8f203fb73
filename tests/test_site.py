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


def test_the_reference_is_whole_in_a_clone_and_says_what_the_code_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    from names import NAMES, meanings  # type: ignore[import-not-found]

    # In a process of its own: other tests register parts.
    check = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(check, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, f"python docs/generate.py brings up to date: {done.stdout}"
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert not re.findall(r"\{(?:from-code|fields|eval-rst)\}", text)
    explained = re.findall(
        r"^<!-- generated: fields (\S+) -->\n(.*?)^<!-- end -->", text, re.M | re.S
    )
    assert {kind for kind, _ in explained} == NAMES.keys()
    for kind, table in explained:
        assert all(meanings(table).values()), kind


def test_a_meaning_of_a_name_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "_ext")
    import names  # type: ignore[import-not-found]

    rows = "| `time` | float64 | seconds |\n| `old` | int8 | gone |\n"
    with pytest.raises(ValueError, match=r"unknown .*old"):
        names.table("memory", rows)


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
