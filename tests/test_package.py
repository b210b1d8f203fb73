"""What is released: one version everywhere; archives that hold what they should and work installed.

The slow tests build, and install into empty environments with pip, which wants its index.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kvsim.cli import main

ROOT = Path(__file__).resolve().parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION = PROJECT["project"]["version"]

COMPARE = ["compare", "--num-requests", "50", "--out", "r"]

GOOD = """
import kvsim
import workloads

trace = workloads.sharegpt(num_requests=20, request_rate=8.0, seed=0)
result: kvsim.Result = kvsim.simulate(trace, model="llama-3-8b", gpu="l4")
blocks: int = kvsim.capacity(model="llama-3-8b", gpu="l4").num_gpu_blocks
"""

#: The type of each line is wrong.
WRONG = """
import kvsim
import workloads

workloads.sharegpt(num_requests="twenty", request_rate=8.0, seed=0)
kvsim.simulate(3)
text: str = kvsim.capacity(model="llama-3-8b", gpu="l4").num_gpu_blocks
"""


def lowest_versions() -> list[str]:
    """Return a pin of each runtime dependency at its lower bound."""
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+)", d) for d in PROJECT["project"]["dependencies"]]
    assert all(bounds), "a dependency has no lower bound"
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]


def run_in(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without anything of this environment on Python's path."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "MYPYPATH", "KVSIM_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    environment |= {"KVSIM_CACHE_DIR": str(folder / "cache"), "COLUMNS": "80"}
    return subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = run_in(folder, sys.executable, "-m", "build", "--outdir", folder, ROOT)
    assert done.returncode == 0, done.stderr
    return folder


def install(archives: Path, folder: Path, pins: list[str]) -> Path:
    """Install the wheel into an empty environment; returns the folder of its programs."""
    (wheel,) = archives.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    programs = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
    done = run_in(folder, programs / "pip", "install", "--quiet", wheel, *pins)
    assert done.returncode == 0, done.stderr
    return programs


def test_the_version_is_one() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", changes, re.MULTILINE)
    assert headings[0] == "Unreleased"
    version, _, date = headings[1].partition(" - ")
    assert version == VERSION
    assert f"version: {VERSION}\n" in citation
    assert f"date-released: {date}\n" in citation
    assert f"license: {PROJECT['project']['license']}\n" in citation


def test_the_groups_take_their_lists_from_the_extras() -> None:
    groups, extras = PROJECT["dependency-groups"], PROJECT["project"]["optional-dependencies"]
    assert "kvsim[test]" in groups["test"]
    assert "kvsim[lint]" in groups["lint"]
    assert "kvsim[lint]" in extras["test"]  # README's one command installs all that CI runs


@pytest.mark.slow
def test_the_source_archive_holds_what_the_repository_holds(archives: Path) -> None:
    (source,) = archives.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("tests/conftest.py", "notebooks/01_quickstart.ipynb", "experiments/paper.py"):
        assert needed in names
    assert {"docs/data.md", "CONTRIBUTING.md", "SECURITY.md", ".ci/run"} <= names
    assert any(name.startswith("tests/data/vllm_cases/") for name in names)
    generated = (".hypothesis", "__pycache__", ".venv", ".benchmarks", "_build")
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not [name for name in folders if name in generated or name.endswith("_cache")]
    if (ROOT / ".git").exists():
        listed = run_in(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard")
        files = set(listed.stdout.split("\n"))
        assert names - files == {"PKG-INFO"}
        assert {name for name in files - names if "/" in name} == set()


@pytest.mark.slow
def test_the_wheel_holds_the_two_packages_and_their_types(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    assert tops == {"kvsim", "workloads", f"kvsim-{VERSION}.dist-info"}
    assert {"kvsim/py.typed", "workloads/py.typed", "kvsim/catalog/models.toml"} <= set(names)


@pytest.mark.slow
@pytest.mark.parametrize("pins", [[], lowest_versions()], ids=["newest", "lowest"])
def test_the_wheel_works_alone(
    archives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], pins: list[str]
) -> None:
    """With the newest dependencies and with the lowest, it prints what the checkout prints."""
    programs = install(archives, tmp_path, pins)
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run_in(empty, programs / "python", "-c", "import kvsim, workloads")
    assert done.returncode == 0, done.stderr
    done = run_in(empty, programs / "kvsim", *COMPARE)
    assert done.returncode == 0, done.stderr
    main([*COMPARE[:-1], str(tmp_path / "here")])
    expected = capsys.readouterr().out.splitlines()[:-1]  # the last line names the folder
    assert [line.rstrip() for line in done.stdout.splitlines()[: len(expected)]] == [
        line.rstrip() for line in expected
    ]
    assert {p.name for p in (empty / "r").iterdir()} == {
        p.name for p in (tmp_path / "here").iterdir()
    }
    check_types(programs, tmp_path)


def check_types(programs: Path, folder: Path) -> None:
    """Check users' files against the installed wheel: a right one, one wrong in three lines."""
    python = ["--strict", "--python-executable", str(programs / "python")]
    for name, text, count in (("good", GOOD, 0), ("wrong", WRONG, 3)):
        file = folder / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        done = run_in(folder, sys.executable, "-m", "mypy", *python, file)
        assert done.stdout.count("error: ") == count, done.stdout + done.stderr
