"""Which engine runs, what it says, what it refuses, and where compiled code is kept."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.compiled import cache, machine
from kvsim.cost.constant import ConstantCost
from kvsim.cost.model import StepCost
from kvsim.sched.scheduler import StepPlan

SMALL: dict[str, Any] = {"model": "llama-3-8b", "gpu": "l4", "max_model_len": 512}
FEW = workloads.fixed(prompt=20, output=5, num_requests=3, request_rate=1.0)


class Doubled(ConstantCost):
    """A user's own cost model."""

    def step(self, plan: StepPlan) -> StepCost:
        return super().step(plan)._replace(time=2 * self.seconds)


def test_auto_says_which_ran() -> None:
    assert kvsim.simulate(FEW, **SMALL).provenance["engine"] == "compiled"
    checked = kvsim.simulate(FEW, check_invariants=True, **SMALL)
    assert checked.provenance["engine"] == "compiled"
    doubled = kvsim.simulate(FEW, cost_model=f"{__name__}:Doubled", **SMALL)
    assert doubled.provenance["engine"] == "python"
    assert doubled.provenance["reason"] == f"cost model {__name__}:Doubled is plain Python"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"allocator": "dynamic"}, "allocator dynamic is plain Python"),
        (
            {"allocator": "paged+eviction=test_eviction:HitsStay"},
            "eviction policy test_eviction:HitsStay is plain Python",
        ),
        ({"cost_model": f"{__name__}:Doubled"}, "cost model .*Doubled is plain Python"),
    ],
)
def test_compiled_refuses_what_it_cannot_run(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"compiled cannot run this: .*{reason}"):
        kvsim.simulate(FEW, backend="compiled", **SMALL | options)
    assert kvsim.simulate(FEW, **SMALL | options).provenance["engine"] == "python"


def test_json_begins_its_provenance_with_the_engine_and_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["run", "--num-requests", "2", "--backend", "python", "--json", "-"])
    told = json.loads(capsys.readouterr().out)["provenance"]
    assert list(told.items())[:2] == [("engine", "python"), ("reason", "asked for")]
    assert told["seed"] == 0
    assert "backend" not in told


def test_verbose_names_the_backend(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "-v", "--num-requests", "5", "--model", "gpt-oss-20b", "--gpu", "h100-sxm"])
    assert "compiled backend" in capsys.readouterr().err
    main(["run", "-v", "--num-requests", "5", "--allocator", "dynamic"])
    assert "python backend" in capsys.readouterr().err
    main(["run", "--num-requests", "5", "--allocator", "dynamic"])
    assert (
        "runs in plain Python, 23 to 434 times slower (measured): allocator dynamic"
        in capsys.readouterr().err
    )
    main(["compare", "-v", "--num-requests", "5", "--allocators", "paged"])
    assert "paged: compiled backend" in capsys.readouterr().err


def test_an_edited_rule_gets_a_cache_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVSIM_CACHE_DIR", str(tmp_path / "cache"))
    before = cache.cache_folder()
    assert before.is_relative_to(tmp_path / "cache")
    package = Path(cache.__file__).parents[1]
    for room in cache.ROOMS:
        shutil.copytree(package / room, tmp_path / "copy" / room)
    monkeypatch.setattr(cache, "__file__", str(tmp_path / "copy" / "compiled" / "cache.py"))
    assert cache.cache_folder() == before
    for room in cache.ROOMS:
        with (tmp_path / "copy" / room / "__init__.py").open("a") as file:
            file.write("\n")
        assert cache.cache_folder() != before
        before = cache.cache_folder()
    monkeypatch.setenv(
        "KVSIM_BOUNDSCHECK", "1" if os.environ.get("KVSIM_BOUNDSCHECK") != "1" else "0"
    )
    assert cache.cache_folder() != before


def test_a_read_only_home_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("KVSIM_CACHE_DIR", str(blocked))
    folder = cache.cache_folder()
    assert folder.is_dir()
    assert os.access(folder, os.W_OK)


@pytest.mark.parametrize("planted", ["a link", "writable by others", "of another user"])
def test_a_cache_folder_that_somebody_else_may_have_filled_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    """What is read from it is unpickled."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("KVSIM_CACHE_DIR", str(blocked))
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"kvsim-{os.getuid()}"
    folder = cache.cache_folder()
    assert folder.is_relative_to(own)
    assert folder.stat().st_mode & 0o777 == 0o700
    if planted == "a link":
        own.rename(tmp_path / "elsewhere")
        own.symlink_to(tmp_path / "elsewhere")
    elif planted == "writable by others":
        folder.chmod(0o777)
    else:
        uid = os.getuid() + 1
        own.rename(tmp_path / f"kvsim-{uid}")
        own = tmp_path / f"kvsim-{uid}"
        monkeypatch.setattr(os, "getuid", lambda: uid)
    assert not cache.cache_folder().is_relative_to(own)


def test_a_damaged_cache_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "define i64 @damaged(i64 %a) {\nret i64 3\n}"
    file = machine.file_of("damaged", tmp_path)
    for _ in range(2):
        monkeypatch.setattr(machine, "_engines", {})
        library = machine.library_of("damaged", tmp_path, lambda: text)
        found = ctypes.PYFUNCTYPE(ctypes.c_int64)(machine.address_in(library, "damaged"))
        assert found() == 3
        whole = file.read_bytes()
        file.write_bytes(whole[:-9] + b"123456789")
    assert len(file.read_bytes()) == len(whole)
    with pytest.raises(RuntimeError):  # an error of the compiler is no damage
        machine.library_of("wrong", tmp_path, lambda: "define nothing")


def test_who_starts_at_once_compiles_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvsim.compiled import entry

    class Slow:
        """Translates slowly."""

        def entry_of(self, name: str, rule: Any) -> str:
            translated.append(name)
            time.sleep(0.1)
            return f'define i64 @"{name}"(i64 %a, i64 %b, i64 %c) {{\nret i64 7\n}}'

    translated: list[str] = []
    monkeypatch.setattr(machine, "_engines", {})
    monkeypatch.setattr(entry, "FOLDER", tmp_path)
    monkeypatch.setattr(entry, "variant_of", lambda state: "slow")
    monkeypatch.setattr(entry, "unit_of", lambda variant: Slow())
    state = SimpleNamespace(address=0)
    both = [threading.Thread(target=entry.serve, args=(state,)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(timeout=60)
    assert translated == ["serve-slow"]
    assert "compiling the code of this run" in capsys.readouterr().err
    assert entry.serve(state)(0, 0) == 7
    assert capsys.readouterr().err == ""


def test_the_summary_is_json(tmp_path: Path) -> None:
    result = kvsim.simulate(FEW, backend="compiled", **SMALL)
    result.save(tmp_path / "run")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["completed"] == 3
