"""Cells: what names them, and that they are whole or not there."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import workloads
from kvsim.config import RunConfig
from kvsim.parametric import only_here, state_of
from kvsim.study import cell as cell_module
from kvsim.study import digest
from kvsim.study.cell import CorruptError, Stored, read_cell, store_cell
from kvsim.study.digest import REQUESTS, digest_of, ingredients_of, physics_revision
from kvsim.study.traces import hand_over, take


def named(trace_digest: str = "t", **options: Any) -> str:
    return digest_of(ingredients_of(RunConfig.build(**options), trace_digest))


def test_every_option_counts_and_defaults_are_filled_in() -> None:
    first = named()
    assert named(swap_space=4.0) == first
    others = [
        named(block_size=32),
        named(seed=1),
        named(allocator="paged+int8"),
        named(goodput={"ttft": 500.0}),
        named(speculative_config='{"method": "ngram", "num_speculative_tokens": 2}'),
        named(horizon=5.0),
        named("u"),
    ]
    assert len({first, *others}) == 1 + len(others)


def test_requests_count_by_what_they_are() -> None:
    assert named(trace="here.csv") == named(trace="moved.csv", request_rate=2.0)
    assert RunConfig.model_fields.keys() >= REQUESTS


def test_the_version_and_the_code_count(monkeypatch: pytest.MonkeyPatch) -> None:
    first = named()
    monkeypatch.setattr(digest, "kvsim_version", lambda: "9.9")
    second = named()
    monkeypatch.setattr(digest, "physics_revision", lambda: "edited")
    assert len({first, second, named()}) == 3


def test_any_edit_of_the_package_is_another_revision(tmp_path: Path) -> None:
    """Code, constants and names of files count; what Python compiles does not."""
    found = []
    for index, (name, text) in enumerate(
        [("a.py", "x = 1\n"), ("a.py", "x = 2\n"), ("b.py", "x = 2\n"), ("a.toml", "x = 2\n")]
    ):
        package = tmp_path / str(index)
        (package / "room" / "__pycache__").mkdir(parents=True)
        (package / "room" / name).write_text(text)
        first = physics_revision.__wrapped__(package)
        (package / "room" / "__pycache__" / "a.pyc").write_text(str(index))
        assert physics_revision.__wrapped__(package) == first
        found.append(first)
    assert len(set(found)) == len(found)


def test_files_that_options_name_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    table, plug_in = tmp_path / "table.csv", tmp_path / "own_part.py"
    table.write_text("1")
    plug_in.write_text("class Own: ...")
    options = {"cost_model": "measured+file=table.csv", "allocator": "own_part:Own"}
    said = ingredients_of(RunConfig.build(**options), "t")["input_files"]
    assert said.keys() == {"table.csv", "own_part"}
    found = [named(**options)]
    for path in (table, plug_in):
        path.write_text(path.read_text() + "\n# edited")
        found.append(named(**options))
    assert len(set(found)) == 3


def test_the_files_of_parts_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler given by its file, and an eviction policy with parameters of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_policy.py"
    for options in (
        {"scheduler": f"{file}:Own+a=1"},
        {"allocator": f"paged+eviction={file}:Own:a=1"},
        {"allocator": "paged+eviction=own_policy:Own:a=1"},
    ):
        file.write_text("class Own: ...")
        first = named(**options)
        file.write_text("class Own: 1")
        assert named(**options) != first


def test_parts_of_this_process_count_by_their_source_and_parameters() -> None:
    class Own:
        def __init__(self, values: tuple[int, ...] = ()) -> None:
            self.values = values

    found = [named(scheduler=partial(Own, values=(n,))) for n in (1, 2, 1)]
    assert found[0] != found[1]
    (text,) = only_here(RunConfig.build(scheduler=partial(Own, values=(3,))).scheduler)
    assert state_of(text) == state_of(text)


def store(folder: Path, error: str | None = None, **summary: float) -> Path:
    ingredients = ingredients_of(RunConfig.build(), "t")
    name = digest_of(ingredients)
    store_cell(
        folder,
        name,
        config="seed = 0\n",
        provenance={"ingredients": ingredients},
        summary=summary,
        error=error,
    )
    return folder / name


def test_a_cell_comes_back_and_nothing_else_is_left(tmp_path: Path) -> None:
    cell = store(tmp_path, completed=3.5)
    assert read_cell(cell) == Stored({"completed": 3.5}, None)
    assert [path.name for path in tmp_path.iterdir()] == [cell.name]
    assert read_cell(tmp_path / "never") is None


def test_who_comes_second_discards(tmp_path: Path) -> None:
    cell = store(tmp_path, completed=1)
    store(tmp_path, completed=2)
    store(tmp_path, error="no")
    assert read_cell(cell) == Stored({"completed": 1}, None)
    assert len(list(tmp_path.iterdir())) == 1


def test_who_is_overtaken_while_it_looks_discards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process puts the same cell there between the look and the rename."""
    looks: list[Stored | None] = []

    def overtaken(folder: Path) -> Stored | None:
        looks.append(read_cell(folder))
        if len(looks) == 1:
            with monkeypatch.context() as unpatched:
                unpatched.setattr(cell_module, "read_cell", read_cell)
                store(tmp_path, completed=1)
        return looks[-1]

    monkeypatch.setattr(cell_module, "read_cell", overtaken)
    cell = store(tmp_path, completed=2)
    assert looks == [None, Stored({"completed": 1}, None)]
    assert read_cell(cell) == Stored({"completed": 1}, None)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_cell_gives_way_to_a_good_one(tmp_path: Path) -> None:
    cell = store(tmp_path, error="no memory")
    assert read_cell(cell) == Stored(None, "no memory")
    store(tmp_path, completed=2)
    assert read_cell(cell) == Stored({"completed": 2}, None)


@pytest.mark.parametrize("name", ["summary.json", "config.toml", "provenance.json"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_every_damage_is_noticed_and_mended(tmp_path: Path, name: str, damage: str) -> None:
    cell = store(tmp_path, completed=1)
    file = cell / name
    text = file.read_text()
    if damage == "gone":
        file.unlink()
    else:
        file.write_text(text[: len(text) // 2] if damage == "cut" else text.replace("0", "7", 1))
    if (name, damage) == ("summary.json", "changed"):
        file.write_text('{"completed": 2}')
    with pytest.raises(CorruptError):
        read_cell(cell)
    store(tmp_path, completed=1)
    assert read_cell(cell) == Stored({"completed": 1}, None)


def test_a_cell_under_the_name_of_another_is_noticed(tmp_path: Path) -> None:
    cell = store(tmp_path, completed=1)
    moved = cell.rename(tmp_path / "0123456789abcdef")
    with pytest.raises(CorruptError, match="its digest does not match"):
        read_cell(moved)


def test_a_strangers_cell_names_no_other_files(tmp_path: Path) -> None:
    """One that names a device or a pipe would be read for ever."""
    cell = store(tmp_path / "cells", completed=3.5)
    said = json.loads((cell / "provenance.json").read_text())
    said["sha256"]["../../other"] = "0"
    (cell / "provenance.json").write_text(json.dumps(said))
    with pytest.raises(
        CorruptError, match=r"it names '\.\./\.\./other', which is not a file of a cell"
    ):
        read_cell(cell)


def test_provenance_says_what_the_digest_is_of(tmp_path: Path) -> None:
    said = json.loads((store(tmp_path) / "provenance.json").read_text())
    assert said["ingredients"].keys() == {
        *("config", "seed", "trace_digest", "input_files", "kvsim_version", "physics_revision"),
    }


def test_traces_are_handed_over_whole(tmp_path: Path) -> None:
    trace = workloads.sharegpt(num_requests=9, request_rate=2, seed=1)
    path = hand_over(trace, tmp_path)
    assert take(path).digest == trace.digest
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(OSError, match="damaged"):
        take(path)
    assert take(hand_over(trace, tmp_path)).digest == trace.digest
