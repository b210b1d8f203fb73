"""Files and folders that appear whole, whoever is killed when."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

import kvsim
from kvsim import files
from kvsim.files import (
    COMMIT,
    OBSOLETE,
    look_into,
    read_bytes,
    settle,
    whole_folder,
    write_whole,
)
from kvsim.report.plot import FIGURES
from kvsim.results.comparison import Comparison
from kvsim.results.result import ON_REQUEST, OWNED, TABLES
from kvsim.testing import equal_tables
from kvsim.trace import Trace


@cache
def run_of(num_requests: int) -> kvsim.Result:
    trace = Trace.from_arrays([0.0] * num_requests, [50] * num_requests, [9] * num_requests)
    with_map = num_requests == 2
    return kvsim.simulate(
        trace, model="gpt2", gpu="l4", record_memory_map=with_map, backend="python"
    )


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.long
def test_what_a_run_directory_holds_is_replaced(tmp_path: Path) -> None:
    assert {f"{name}.png" for name in FIGURES} <= set(OWNED)
    (tmp_path / "notes.txt").write_text("mine")
    run_of(2).save(tmp_path)
    (tmp_path / "waste.png").write_text("of the older run")
    assert "memory_map.npy" in names(tmp_path)
    run_of(3).save(tmp_path)
    tables = {f"{name}.parquet" for name in TABLES.keys() - ON_REQUEST.keys() - {"samples"}}
    others = {"config.toml", "provenance.json", "summary.json", "notes.txt"}
    assert names(tmp_path) == tables | others
    assert len(kvsim.load(tmp_path).requests) == 3


def test_a_folder_that_was_complete_when_its_writer_died_is_brought_to_its_place(
    tmp_path: Path,
) -> None:
    new = tmp_path / COMMIT
    for place, text in ((tmp_path, "old"), (new, "new")):
        (place / "run").mkdir(parents=True)
        (place / "run" / "file").write_text(text)
        (place / "file").write_text(text)
    (tmp_path / "gone").write_text("old")
    (tmp_path / "other").write_text("stays")
    (new / OBSOLETE).write_text('["gone", "never was"]')
    (new / "file").replace(tmp_path / "file")  # so far it had come
    settle(tmp_path, ["gone", "never was"])
    assert names(tmp_path) == {"run", "file", "other"}
    assert (tmp_path / "run" / "file").read_text() == (tmp_path / "file").read_text() == "new"


def test_a_reader_finds_what_was_complete_and_changes_nothing(tmp_path: Path) -> None:
    new = tmp_path / COMMIT
    new.mkdir()
    for place in (tmp_path / "file", tmp_path / "gone", tmp_path / "other", new / "file"):
        place.write_text(place.parent.name)
    (new / OBSOLETE).write_text('["gone"]')
    find = look_into(tmp_path)
    assert find("file") == new / "file"
    assert find("other") == tmp_path / "other"
    assert not find("gone").exists()
    assert names(tmp_path) == {"file", "gone", "other", COMMIT}


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder of somebody else, beside a folder of one's own."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "thesis.txt").write_text("mine")
    (tmp_path / "gift" / COMMIT).mkdir(parents=True)
    return tmp_path / "gift"


@pytest.mark.parametrize("place", ["{own}/thesis.txt", "../own/thesis.txt", "notes.txt", "."])
def test_a_strangers_list_deletes_nothing(strange: Path, place: str) -> None:
    named = place.format(own=strange.parent / "own")
    (strange / COMMIT / OBSOLETE).write_text(json.dumps([named]))
    (strange / "notes.txt").write_text("stays")
    with pytest.raises(ValueError, match="not a run directory"):
        kvsim.load(strange)
    assert names(strange) == {COMMIT, "notes.txt"}
    run_of(2).save(strange)
    assert (strange / "notes.txt").read_text() == "stays"
    assert (strange.parent / "own" / "thesis.txt").read_text() == "mine"


def test_a_link_in_a_strangers_folder_is_not_followed(strange: Path) -> None:
    own = strange.parent / "own"
    (strange / COMMIT).rmdir()
    (own / OBSOLETE).write_text("[]")
    (strange / COMMIT).symlink_to(own)
    (strange / "summary.json").symlink_to(own / "thesis.txt")
    (strange / "paged").symlink_to(own)
    run_of(2).save(strange)
    Comparison({}, {"paged": run_of(3)}).save(strange)
    write_whole(strange / "paged.txt", lambda file: file.write(b"new"), follow_link=False)
    (strange / "table.csv").symlink_to(own / "thesis.txt")
    write_whole(strange / "table.csv", lambda file: file.write(b"new"), follow_link=False)
    assert (strange / "table.csv").read_text() == "new"
    assert names(own) == {"thesis.txt", OBSOLETE}
    assert (own / "thesis.txt").read_text() == "mine"
    assert len(kvsim.load(strange).requests) == 2
    assert len(kvsim.load(strange / "paged").requests) == 3


@pytest.mark.parametrize("text", ["", "{}", "[1]", "[" * 100_000, None])
def test_a_damaged_list_is_one_line(strange: Path, text: str | None) -> None:
    if text is not None:
        (strange / COMMIT / OBSOLETE).write_text(text)
    with pytest.raises(ValueError, match=r"a save was interrupted: .*is damaged"):
        kvsim.load(strange)
    with pytest.raises(ValueError, match=r"cannot be written: .*is damaged"):
        run_of(2).save(strange)
    assert names(strange) == {COMMIT}


def test_an_error_while_filling_leaves_the_old_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    filling = whole_folder(tmp_path)
    (filling.__enter__() / "file").write_text("new")
    assert not filling.__exit__(KeyError, KeyError(), None)
    assert names(tmp_path) == {"file"}
    assert (tmp_path / "file").read_text() == "old"


def test_what_a_kill_left_unfinished_goes_when_it_is_old(tmp_path: Path) -> None:
    young, old = tmp_path / ".kvsim-1.tmp", tmp_path / ".kvsim-2.tmp"
    for path in (young, old / "file"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("half")
    os.utime(old, (time.time() - 7200,) * 2)
    write_whole(tmp_path / "file", lambda file: file.write(b"whole"))
    assert names(tmp_path) == {"file", ".kvsim-1.tmp"}


def test_compressed_files_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "file.gz"
    packed.write_bytes(gzip.compress(b"0" * 1001))
    assert read_bytes(packed) == b"0" * 1001
    monkeypatch.setattr(files, "MAX_UNFOLDED", 1000)
    with pytest.raises(OSError, match="unfolds to more than 1,000 bytes"):
        read_bytes(packed)
    packed.write_bytes(packed.read_bytes()[:12])
    with pytest.raises(OSError, match="a damaged or truncated gzip file"):
        read_bytes(packed)


SAVING = """
import sys, kvsim
runs = [kvsim.load(folder) for folder in sys.argv[1:3]]
print("ready", flush=True)
while True:
    for run in runs:
        run.save(sys.argv[3])
"""


@pytest.mark.long
@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_a_save_killed_at_any_moment_leaves_the_old_run_or_the_new_one(
    tmp_path: Path, times: int
) -> None:
    kept = {n: run_of(n) for n in (2, 3)}
    folders = [str(tmp_path / str(n)) for n in kept]
    for run, folder in zip(kept.values(), folders, strict=True):
        run.save(folder)
    kept[2].save(tmp_path / "here")
    draw = random.Random(0)
    for _ in range(times):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVING, *folders, str(tmp_path / "here")],
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(draw.uniform(0.0, 0.1))
        child.send_signal(signal.SIGKILL)
        child.communicate(timeout=60)
        found = kvsim.load(tmp_path / "here")
        whole = kept[len(found.requests)]
        assert found.summary == whole.summary
        assert found.memory_map.shape == whole.memory_map.shape
        assert all(equal_tables(getattr(found, name), getattr(whole, name)) for name in TABLES)
    kept[3].save(tmp_path / "here")
    assert len(kvsim.load(tmp_path / "here").requests) == 3
