"""What lies in the current folder is not executed unless a part is named that is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: The command as it is installed, and as a module. Both must find kvsim, not the folder.
COMMANDS = {
    "command": [sys.executable, "-P", "-c", "from kvsim.cli import main; main()"],
    "module": [sys.executable, "-m", "kvsim"],
}
PLANTED = "from pathlib import Path\nPath('executed').write_text(__name__)\n"
#: Packages that are not installed are tried for, others come first in the folder itself.
NAMES = ("scipy", "simpy", "rich", "coverage", "pyarrow", "kvsim_own_scheduler")
OWN = """import helper
from kvsim.sched.vllm import VllmScheduler


class Mine(VllmScheduler):
    pass
"""


def run(folder: Path, command: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[1]
    return subprocess.run(
        [*command, "run", "gpt2", "--gpu", "l4", "--workload", "fixed+prompt=9+output=2",
         "--num-requests", "2", *arguments],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_module_of_the_current_folder_is_not_executed(tmp_path: Path, kind: str) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(PLANTED)
    (tmp_path / "evil-1.0.dist-info").mkdir()
    (tmp_path / "evil-1.0.dist-info" / "entry_points.txt").write_text(
        "[kvsim.schedulers]\nvllm = scipy:Thing\n"
    )
    done = run(tmp_path, COMMANDS[kind])
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "executed").exists()


@pytest.mark.long
@pytest.mark.parametrize("kind", COMMANDS)
def test_a_part_of_the_current_folder_is_imported_with_what_it_imports(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "helper.py").write_text("")
    (tmp_path / "own.py").write_text(OWN)
    done = run(tmp_path, COMMANDS[kind], "--scheduler", "own:Mine", "--backend", "python")
    assert done.returncode == 0, done.stderr


POOLED = """
from kvsim.study.workers import _pooled
print(list(_pooled(len, [("a",), ("bc",)], 2, "generator")))
"""


@pytest.mark.long
def test_workers_execute_no_module_of_the_current_folder(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    for name in (*NAMES, "numpy", "kvsim"):
        (tmp_path / f"{name}.py").write_text(PLANTED)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    env.pop("PYTHONSAFEPATH", None)
    command = [sys.executable, "-P", "-c", POOLED]
    said = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True).stdout
    assert said == b"[1, 2]\n"
    assert not (tmp_path / "executed").exists()
