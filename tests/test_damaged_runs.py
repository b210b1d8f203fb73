"""A run's folder that is damaged, or was made to do harm, is a ValueError of one line."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import kvsim
from kvsim.results.result import TABLES
from kvsim.results.tables import REQUESTS
from kvsim.trace import Trace


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every file that a run can have."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    trace = Trace.from_arrays([0.0] * 5, [50] * 5, [9] * 5, tenant=[0, 1, 0, 1, 0])
    records = dict.fromkeys(("record_steps", "record_memory_map", "record_block_events"), True)
    run = kvsim.simulate(trace, model="gpt2", gpu="l4", backend="python", **records)
    run.save(folder)
    assert {p.name for p in folder.iterdir()} >= {"memory_map.npy", "tenant.npy"}
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "run"))


def refused(folder: Path, said: str) -> None:
    with pytest.raises(ValueError, match=said) as told:
        kvsim.load(folder)
    assert str(told.value).startswith(f"{folder}")
    assert "\n" not in str(told.value)


def change(folder: Path, table: str, **columns: Any) -> None:
    """Replace columns of a table; None takes one away."""
    path = folder / f"{table}.parquet"
    stored = parquet.read_table(path)
    rows = {name: stored[name] for name in stored.column_names} | columns
    parquet.write_table(pa.table({n: c for n, c in rows.items() if c is not None}), path)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (None, "No match for FieldRef|request_id|not in|found"),
        ([None] * 5, "column request_id has 5 empty fields"),
        ([1, 2, None, 4, 5], "column request_id has 1 empty fields"),
        ([{"a": 1}] * 5, "column request_id holds struct<a: int64>, not int"),
        ([[1]] * 5, "column request_id holds list<"),
        (["1"] * 5, "column request_id holds string, not int"),
        ([1.0, 2.0, float("nan"), 4.0, 5.0], "column request_id holds double, not int"),
        ([2**40] * 5, "column request_id holds int64, not int32"),
        ([True] * 5, None),
    ],
)
def test_columns_of_another_kind(folder: Path, values: Any, said: str | None) -> None:
    name, dtype = next((n, REQUESTS[n]) for n in REQUESTS.names if REQUESTS[n].kind == "i")
    if values == [2**40] * 5 and dtype == np.int64:
        values, said = pa.array([2**63] * 5, pa.uint64()), "holds uint64, not int64"
    change(folder, "requests", **{name: values})
    if said is None:
        assert kvsim.load(folder).requests[name].tolist() == [1] * 5  # truth values are numbers
    else:
        refused(folder, said.replace("request_id", name))


HEADERS = {
    "more rows than bytes": "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 9)}",
    "negative": "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 9)}",
    "beyond 64 bits": "{'descr': '|u1', 'fortran_order': False, 'shape': (10**30, 9)}",
    "objects": "{'descr': '|O', 'fortran_order': False, 'shape': (2, 2)}",
    "another type": "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2)}",
    "one dimension": "{'descr': '|u1', 'fortran_order': False, 'shape': (4,)}",
    "no end": "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2)",
    "nothing": "",
    "a call": "{'descr': __import__('os').abort(), 'fortran_order': False, 'shape': (2, 2)}",
    "brackets": "(" * 5000,
}


@pytest.mark.parametrize("kind", HEADERS)
def test_headers_of_arrays(folder: Path, kind: str) -> None:
    text = HEADERS[kind].encode() + b"\n"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    (folder / "memory_map.npy").write_bytes(head + bytes(64))
    refused(folder, "memory_map.npy: ")


def test_archives_and_pickles_are_no_arrays(folder: Path) -> None:
    with (folder / "tenant.npy").open("wb") as file:
        np.savez(file, a=np.zeros(5, np.int64))
    refused(folder, "tenant.npy: ")
    np.save(folder / "tenant.npy", np.array([{}], dtype=object), allow_pickle=True)
    refused(folder, "tenant.npy: ")


@pytest.mark.parametrize("text", ["", "[]", "7", "{", "[" * 100_000, "\xff", '{"a": 1}{}'])
@pytest.mark.parametrize("name", ["summary.json", "provenance.json"])
def test_records_that_are_none(folder: Path, name: str, text: str) -> None:
    (folder / name).write_bytes(text.encode("latin-1"))
    refused(folder, f"{re.escape(name)}: ")


@pytest.mark.long
def test_a_table_that_would_fill_memory_is_not_read(folder: Path) -> None:
    many = 40_000_000
    ones = {n: pa.array(np.ones(1, TABLES["memory"][n])) for n in TABLES["memory"].names or ()}
    row = pa.table(ones)
    with parquet.ParquetWriter(folder / "memory.parquet", row.schema, compression="zstd") as file:
        short = pa.table({n: pa.array(np.ones(many // 40, TABLES["memory"][n])) for n in ones})
        for _ in range(40):
            file.write_table(short)
    refused(folder, "memory.parquet: 40,000,000 rows would take [0-9,]+ bytes")


def damaged(draw: random.Random, content: bytes) -> bytes:
    """Return bytes with a few of them changed, cut out or put in."""
    bytes_ = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(bytes_) + 1)
        kind = draw.randrange(4)
        if kind == 0 and at < len(bytes_):
            bytes_[at] = draw.randrange(256)
        elif kind == 1:
            del bytes_[at : at + draw.randint(1, 40)]
        elif kind == 2:
            bytes_[at:at] = draw.randbytes(draw.randint(1, 8))
        else:
            del bytes_[at:]
    return bytes(bytes_)


@pytest.mark.parametrize("times", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_any_damage_is_a_value_error(folder: Path, times: int) -> None:
    draw = random.Random(0)
    files = sorted(folder.iterdir())
    for _ in range(times):
        path = draw.choice(files)
        whole = path.read_bytes()
        path.write_bytes(damaged(draw, whole))
        said = str(folder)
        try:
            kvsim.load(folder)
        except ValueError as error:
            said = str(error)
            if not said.startswith(str(folder)) or "\n" in said:
                raise
        path.write_bytes(whole)
    assert json.loads((folder / "summary.json").read_text())["completed"] == 5
