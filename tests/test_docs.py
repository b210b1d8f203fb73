"""The documents are true: README's commands, output and code, and the docstrings' examples."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest
from documents import README as PAGE
from documents import ROOT, blocks, commands, run_page

import kvsim
import workloads
from kvsim.cli import main

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

README = PAGE.read_text(encoding="utf-8")


def test_the_first_screen_has_two_set_up_commands_and_ci_runs_the_second() -> None:
    install, test = commands(PAGE)[:2]
    assert README.index(test) < 1500
    assert install.endswith("kvsim compare --out results")
    assert test.endswith(".venv/bin/python -m pytest")
    assert test in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.long
def test_the_table_in_readme_is_what_compare_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = [block.text for block in blocks(PAGE) if block.language == "text"]
    main(["compare"])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown.strip().splitlines() == printed[: len(shown.strip().splitlines())]


@pytest.mark.long
def test_what_readme_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len([line for line in commands(PAGE) if "kvsim " in line]) >= 6
    run_page(PAGE, tmp_path, monkeypatch, num_requests=50)  # not all are compiled
    assert (tmp_path / "waste.png").stat().st_size > 10_000


def test_the_changelog_and_catalogue_agree() -> None:
    from kvsim.catalog import gpu_names, model_names

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"{len(model_names())} models and {len(gpu_names())} GPUs" in text


@pytest.mark.long
@pytest.mark.parametrize("package", [kvsim, workloads], ids=lambda package: package.__name__)
def test_docstring_examples(package: ModuleType) -> None:
    found = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    names = [package.__name__, *(m.name for m in found if m.name != "kvsim.__main__")]
    failed = {name: doctest.testmod(importlib.import_module(name)).failed for name in names}
    assert set(failed.values()) == {0}, failed
