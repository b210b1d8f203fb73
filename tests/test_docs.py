"""The documents are true: README's commands, output and code, and the docstrings' examples."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import sys
from pathlib import Path

import pytest

import kvsim
import workloads
from kvsim.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("bash") for line in block.splitlines() if line.strip()]


def test_the_first_screen_has_two_set_up_commands_and_ci_runs_the_second() -> None:
    install, test = commands()[:2]
    assert README.index(test) < 1500
    assert install.endswith("kvsim compare --out results")
    assert test.endswith(".venv/bin/python -m pytest")
    assert test in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_table_in_readme_is_what_compare_prints(capsys: pytest.CaptureFixture[str]) -> None:
    (shown,) = blocks("text")
    main(["compare"])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert shown.strip().splitlines() == printed[: len(shown.strip().splitlines())]


def test_the_commands_in_readme_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for line in commands()[2:] if line.startswith("kvsim ")]
    assert len(lines) >= 8
    for whole in lines:
        line = re.sub(r"--num-requests \d+", "--num-requests 50", whole)  # not all are compiled
        main(shlex.split(line)[1:])
        assert capsys.readouterr().out, line


def test_the_python_in_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "\n".join(blocks("python"))
    code = re.sub(r"num_requests=\d+", "num_requests=8", code)  # a record looks at every block
    (tmp_path / "python_in_readme.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("python_in_readme")
    monkeypatch.delitem(sys.modules, "python_in_readme")
    assert (tmp_path / "waste.png").stat().st_size > 10_000


def test_the_changelog_and_catalogue_agree() -> None:
    from kvsim.catalog import gpu_names, model_names

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"{len(model_names())} models and {len(gpu_names())} GPUs" in text


def modules() -> list[str]:
    names = []
    for package in (kvsim, workloads):
        found = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        names += [package.__name__, *(m.name for m in found if m.name != "kvsim.__main__")]
    return names


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name: str) -> None:
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert not failures
