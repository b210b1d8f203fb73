"""Reads README and the pages of docs/: their blocks, their links, and how to run what they show."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: Pages that people write; the site's own folders are made by a build.
PAGES = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"_build", "notebooks"} & set(path.relative_to(DOCS).parts)
)
README = ROOT / "README.md"

#: Set-up, which .ci/run runs, and what writes a file with nothing but the shell.
SET_UP = ("python3 -m venv", "pip install", ". .venv/bin/activate", "printf ")


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = path.read_text(encoding="utf-8")
    return [Block(*found) for found in re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S)]


def commands(path: Path) -> list[str]:
    """Return the lines of a page's bash blocks."""
    found = [block.text for block in blocks(path) if block.language == "bash"]
    return [line for text in found for line in text.splitlines() if line.strip()]


def links(path: Path) -> list[tuple[str, str]]:
    """Return file and anchor of every relative link of a page, code blocks left out."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    pairs = [link.partition("#") for link in found if not re.match(r"[a-z]+:", link)]
    return [(file, anchor) for file, _, anchor in pairs]


def target(path: Path, file: str) -> Path:
    """Return what a link of a page points at; one from / on starts at the repository's top."""
    if file.startswith("/"):
        return ROOT / file[1:]
    return path.parent / file if file else path


def anchors(path: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = path.read_text(encoding="utf-8")
    included = re.match(r"```\{include\} (\S+)", text)
    if included:
        return anchors(path.parent / included[1])
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.strip().replace(" ", "-") for heading in plain}


def run_page(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, num_requests: int) -> None:
    """Run a page's commands and Python in order, in a folder of its own.

    A block that begins with ``# name.py`` is that file; one named ``test_*.py`` is run at the end.
    """
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    files: list[str] = []
    names: dict[str, Any] = {"__name__": "page"}
    try:
        for block in blocks(path):
            if block.language == "bash":
                for line in block.text.splitlines():
                    _run_line(line, num_requests)
            elif block.language == "python":
                file = re.match(r"# (\w+)\.py\n", block.text)
                if file is None:
                    exec(compile(block.text, str(path), "exec"), names)
                else:
                    (folder / f"{file[1]}.py").write_text(block.text, encoding="utf-8")
                    files.append(file[1])
                    importlib.invalidate_caches()
        for file_name in files:
            module = importlib.import_module(file_name)
            for name in [name for name in vars(module) if name.startswith("test_")]:
                getattr(module, name)()
    finally:
        for file_name in files:
            sys.modules.pop(file_name, None)


def _run_line(line: str, num_requests: int) -> None:
    """Run a kvsim command with few requests; of others, check that they exist."""
    line = line.strip()
    few = re.sub(r"--num-requests \d+", f"--num-requests {num_requests}", line)
    words = shlex.split(few)
    if words[:3] == ["python", "-m", "kvsim"]:
        _run_kvsim(words[3:], num_requests)
    elif words[:1] == ["kvsim"]:
        _run_kvsim(words[1:], num_requests)
    elif words[:1] == ["printf"]:
        text, target_file = words[1], words[3]
        Path(target_file).write_text(text.replace("\\n", "\n"), encoding="utf-8")
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]), line
    elif words[:2] == ["python", "tests/mutation.py"] or words[:1] == [".ci/run"]:
        assert (ROOT / words[-1 if len(words) == 1 else 1]).exists(), line
    else:
        assert any(one in line for one in SET_UP), f"{line}: nobody runs this"


@contextmanager
def suppress_success() -> Iterator[None]:
    """Let a command end with exit code 0; any other one is an error."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise


def _run_kvsim(words: list[str], num_requests: int) -> None:
    serves = words[0] in ("run", "compare") and words[1:2] != ["deployment.toml"]
    if serves and "--num-requests" not in words:
        words = [*words, "--num-requests", str(num_requests)]
    with suppress_success():
        main(words)
