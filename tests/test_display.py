"""Results at a prompt and in a notebook are the command line's tables; metrics are in seconds."""

from __future__ import annotations

import html
import math
import re

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.display import Displayed, structured

#: Of plain Python, which compiles nothing.
OPTIONS = {"model": "llama-3-8b", "gpu": "a100-80gb", "backend": "python"}
FLAGS = ["--model", "llama-3-8b", "--gpu", "a100-80gb", "--backend", "python"]


@pytest.fixture(scope="module")
def trace() -> kvsim.Trace:
    return workloads.sharegpt(num_requests=30, request_rate=2.0, seed=0)


@pytest.fixture(scope="module")
def result(trace: kvsim.Trace) -> kvsim.Result:
    return kvsim.simulate(trace, **OPTIONS)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    main(list(arguments))
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def text_in(shown: str) -> list[str]:
    """Return the lines of an HTML element."""
    text = html.unescape(re.sub(r"<[^>]*>", "", shown))
    return [line.rstrip() for line in text.rstrip().splitlines()]


@pytest.mark.long
def test_a_run_is_shown_as_the_command_shows_it(
    result: kvsim.Result, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, "run", *FLAGS, "--num-requests", "30", "--request-rate", "2")
    assert repr(result).splitlines() == lines[:-1]  # the last says how to write files
    assert text_in(result._repr_html_()) == lines[:-1]


@pytest.mark.long
def test_a_comparison_is_shown_as_the_command_shows_it(
    trace: kvsim.Trace, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["paged", "contiguous-max"]
    lines = printed(
        capsys, "compare", *FLAGS, "--num-requests", "30", "--request-rate", "2",
        "--allocators", ",".join(names),
    )  # fmt: skip
    comparison = kvsim.compare(trace, names, **OPTIONS)
    assert repr(comparison).splitlines() == lines[:-1]
    assert text_in(comparison._repr_html_()) == lines[:-1]


@pytest.mark.long
def test_a_comparison_is_a_table_in_seconds(trace: kvsim.Trace) -> None:
    comparison = kvsim.compare(trace, ["paged", "contiguous-max"], **OPTIONS)
    assert comparison.table["allocator"].tolist() == ["paged", "contiguous-max"]
    expected = [result.metrics.ttft.mean for result in comparison.results.values()]
    assert comparison.table["mean_ttft"].tolist() == pytest.approx(expected, rel=1e-12)
    assert comparison.table["kv_cache.num_gpu_blocks"][0] > 0
    assert comparison.to_pandas()["completed"].tolist() == [30, 30]
    assert comparison.plot().axes


@pytest.mark.parametrize("command", ["capacity", "roofline", "train-memory"])
def test_a_closed_form_is_shown_as_the_command_shows_it(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(capsys, command, "--model", "llama-3-8b", "--gpu", "a100-80gb")
    found = getattr(kvsim, command.replace("-", "_"))(model="llama-3-8b", gpu="a100-80gb")
    assert repr(found).splitlines() == lines[:-1]
    assert text_in(found._repr_html_()) == lines[:-1]


def test_brackets_of_a_text_are_no_markup() -> None:
    class Sheet(Displayed):
        shown_by = f"{__name__}.sheet"

    assert repr(Sheet()) == "[bold]a < b"
    assert text_in(Sheet()._repr_html_()) == ["[bold]a < b"]


def sheet(_: object) -> str:
    return "[bold]a < b"


def test_metrics_are_seconds(result: kvsim.Result) -> None:
    table, found = result.requests, result.metrics
    ttft = table["first_token_time"] - table["arrival_time"]
    assert found.ttft.p99 == pytest.approx(np.percentile(ttft, 99), rel=1e-12)
    assert found.e2el.mean == pytest.approx((table["finish_time"] - table["arrival_time"]).mean())
    assert found.itl.max >= found.itl.p999 >= found.itl.median > 0
    assert found.completed == 30
    assert found.output_throughput == result.summary["output_throughput"]


def test_what_no_request_has_is_nan() -> None:
    trace = workloads.fixed(prompt=10, output=1, num_requests=2)
    found = kvsim.simulate(trace, **OPTIONS).metrics
    assert math.isnan(found.tpot.p99)
    assert math.isnan(found.itl.max)


@pytest.mark.long
def test_a_roofline_has_rows_a_figure_and_files(tmp_path) -> None:
    found = kvsim.roofline(model="llama-3-8b", gpu="h100-sxm", batch_size=32)
    decode = found.table[(found.table["phase"] == "decode") & (found.table["part"] == "GEMMs")]
    assert decode["bound"].tolist() == ["memory"]
    assert decode["intensity"][0] == pytest.approx(32, rel=0.05)
    assert list(found.to_pandas().columns) == list(found.table.dtype.names)
    found.save(tmp_path / "r")
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == ["roofline.json", "roofline.png"]


def test_columns_have_the_types_of_their_values() -> None:
    table = structured(
        [
            {"n": 1, "x": 2, "is_on": True, "name": "a", "none": None, "late": None},
            {"n": 3, "x": 0.5, "is_on": False, "name": None, "none": None, "late": True},
        ]
    )
    assert [table.dtype[name].kind for name in table.dtype.names] == ["i", "f", "b", "U", "f", "f"]
    assert table["name"].tolist() == ["a", ""]
    assert np.isnan(table["none"]).all()
    assert len(structured([])) == 0
