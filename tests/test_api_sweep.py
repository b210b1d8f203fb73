"""``kvsim.sweep``: the rows of the command, as an object, in seconds."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.plugins.routing import Placement, RouterRules
from kvsim.plugins.scheduling import Request, SchedulerRules

#: Requests that plain Python serves in milliseconds.
SHARED: dict[str, Any] = {"model": "llama-3-8b", "gpu": "a100-80gb", "backend": "python"}
WORKLOAD = "fixed+prompt=40+output=6"
FLAGS = ("--model", "llama-3-8b", "--gpu", "a100-80gb", "--backend", "python")
OPTIONS = {"request_rate": [2.0, 8.0], "block_size": [16, 32]}


@pytest.fixture(scope="module")
def trace() -> kvsim.Trace:
    return workloads.generate(WORKLOAD, num_requests=8, request_rate=2.0, seed=0)


def test_each_row_is_a_run_of_its_own(trace: kvsim.Trace) -> None:
    found = kvsim.sweep(trace, {"block_size": [16, 32], "max_num_seqs": [1, 4]}, **SHARED)
    assert len(found.table) == 4
    assert found.table["max_num_seqs"].tolist() == [1, 4, 1, 4]
    for row in found.table:
        options = {name: int(row[name]) for name in ("block_size", "max_num_seqs")}
        alone = kvsim.simulate(trace, **SHARED, **options)
        assert row["p99_ttft"] == pytest.approx(alone.metrics.ttft.p99, rel=1e-12)
        assert row["output_throughput"] == alone.summary["output_throughput"]
    assert found.to_pandas()["block_size"].tolist() == [16, 16, 32, 32]


@pytest.mark.long
def test_a_workload_gives_what_the_command_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = (*FLAGS, "--workload", WORKLOAD, "--num-requests", "8", "--replications", "2")
    asked = ("--request-rate", "2,8", "--block-size", "16,32", "--out", "command", "--workers", "1")
    main(["sweep", *flags, *asked])
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    found = kvsim.sweep(WORKLOAD, OPTIONS, num_requests=8, replications=2, **SHARED)
    assert repr(found).splitlines() == printed[:-1]  # the last names the folder
    found.save("object")
    for name in ("table.csv", "means.csv"):
        with Path("command", name).open() as one, Path("object", name).open() as other:
            assert list(csv.reader(one)) == list(csv.reader(other))
    assert Path("command/table.parquet").read_bytes() == Path("object/table.parquet").read_bytes()
    main(["sweep", *flags, *asked, "--json", "-"])
    assert json.loads(capsys.readouterr().out) == found.to_dict()


def test_seeds_are_means_with_intervals() -> None:
    found = kvsim.sweep(WORKLOAD, {"block_size": [16]}, num_requests=8, replications=3, **SHARED)
    assert len(found.table) == 3
    (mean,) = found.means
    assert mean["mean_ttft"] == pytest.approx(found.table["mean_ttft"].mean())
    assert mean["mean_ttft_ci95"] >= 0
    assert not [name for name in found.means.dtype.names if "_ms" in name]
    assert "seed" in found.table.dtype.names


@pytest.mark.long
def test_a_directory_keeps_the_runs(tmp_path: Path, trace: kvsim.Trace) -> None:
    options = {"block_size": [16, 32]}
    first = kvsim.sweep(trace, options, out=tmp_path, **SHARED)
    cells = sorted((tmp_path / "cells").iterdir())
    before = [cell.stat().st_mtime_ns for cell in cells]
    again = kvsim.sweep(trace, options, out=tmp_path, **SHARED)
    assert [cell.stat().st_mtime_ns for cell in cells] == before
    assert again.cells == first.cells
    assert (tmp_path / "table.csv").is_file()


@pytest.mark.long
def test_options_are_walked_together_and_a_trace_is_cut_and_scaled(trace: kvsim.Trace) -> None:
    found = kvsim.sweep(
        trace, {"num_requests": [4, 8]}, zip={"block_size": [16, 32], "max_num_seqs": [1, 2]},
        request_rate=4.0, **SHARED,
    )  # fmt: skip
    assert found.table["num_requests"].tolist() == [4, 4, 8, 8]
    assert found.table["completed"].tolist() == [4, 4, 8, 8]
    assert found.table["max_num_seqs"].tolist() == [1, 2, 1, 2]
    assert "at 4 requests/s" in found.header[1]


@pytest.mark.long
def test_it_is_drawn(trace: kvsim.Trace) -> None:
    found = kvsim.sweep(trace, {"block_size": np.array([16, 32])}, **SHARED)
    assert len(found.plot().axes) == 3
    with pytest.raises(ValueError, match="are not numbers"):
        kvsim.sweep(trace, {"dtype": ["bfloat16", "float16"]}, **SHARED).plot()


@pytest.mark.parametrize(
    ("options", "more", "told"),
    [
        ({"block_sise": [16]}, {}, "unknown option 'block_sise'; did you mean block_size"),
        ({"block_size": 16}, {}, "block_size is 16: must be a list of values"),
        ({"model": "opt-13b"}, {}, "model is 'opt-13b': must be a list of values"),
        ({"block_size": [0]}, {}, "block_size is 0: must be a whole number, at least 1, or none"),
        ({"gpu": ["l4"]}, {}, "gpu is given both as varied and as an option of all runs"),
        ({"workload": ["sharegpt"]}, {}, "workload conflicts with the argument requests"),
        ({}, {"replications": 2}, "replications: a trace has no seed"),
        ({}, {"dask": "x", "workers": 2}, "--workers and --dask exclude"),
        ({"max_model_len": [10]}, {}, "every cell failed: no request can ever be served"),
    ],
)
def test_mistakes_are_one_line(
    options: dict[str, Any], more: dict[str, Any], told: str, trace: kvsim.Trace
) -> None:
    with pytest.raises(ValueError, match=told) as error:
        kvsim.sweep(trace, options, **SHARED, **more)
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_grids_take_parts_as_objects(trace: kvsim.Trace, tmp_path: Path) -> None:
    """Each row is the run of its name; labels have the class and its parameters, no file."""

    class Last(RouterRules):
        def choose(self, placement: Placement) -> int:
            return placement.num_candidates - 1

    one = SHARED | {"data_parallel_size": 2}
    grid = {
        "scheduler": [LongestFirst(weight=2.0), "vllm"],
        "router": [Last, "round-robin"],
        "eviction": ["fifo", "lru"],
    }
    found = kvsim.sweep(trace, grid, workers=2, out=tmp_path, **one)
    assert len(found.table) == 8
    for row in found.table[:3]:
        named = {name: str(row[name]) for name in grid}
        alone = kvsim.simulate(trace, **one, **named)  # type: ignore[misc]
        assert row["p99_ttft"] == pytest.approx(alone.metrics.ttft.p99, rel=1e-12)
    assert "LongestFirst+weight=2 " in repr(found)
    assert f"{__name__}:" not in repr(found)
    (note,) = [one for one in found.notes if "in one process" in one]
    assert "Last" in note


class LongestFirst(SchedulerRules):
    """A scheduler that workers find by this module."""

    weight: float = 1.0

    def priority(self, request: Request, now: float) -> float:
        return -self.weight * request.num_prompt_tokens
