"""Figures hold the numbers they claim to show, with labelled axes; tables fit a terminal."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import kvsim
import workloads
from kvsim.cli import main
from kvsim.kv.usage import HELD, Cause
from kvsim.report import plot
from kvsim.report.colours import LINES
from kvsim.report.plots.sweep import sweep
from kvsim.report.terminal import comparison_table, run_table
from kvsim.report.text import gib, milliseconds, number, percent


@pytest.fixture(scope="module")
def comparison() -> kvsim.Comparison:
    trace = workloads.sharegpt(num_requests=40, request_rate=4, seed=0)
    names = ["contiguous-max", "contiguous-pow2", "paged"]
    return kvsim.compare(trace, names, record_memory_map=True, data_parallel_size=2)


def test_waste_bars_are_the_fractions_and_sum_to_100(comparison: kvsim.Comparison) -> None:
    figure = kvsim.plot.waste(comparison)
    (axes,) = figure.axes
    assert axes.get_ylabel().endswith("(%)")
    assert axes.get_ylim() == (0, 100)
    heights = np.array([bar.get_height() for bar in axes.patches]).reshape(4, 3)
    assert heights.sum(axis=0) == pytest.approx([100] * 3)
    expected = [100 * row["kv_cache"]["token_states"] for row in comparison.rows]
    assert heights[0] == pytest.approx(expected)
    assert [t.get_text() for t in axes.get_xticklabels()] == list(comparison)


@pytest.mark.long
def test_every_axis_of_every_figure_is_labelled_with_its_unit(comparison: kvsim.Comparison) -> None:
    for name, draw in kvsim.plot.FIGURES.items():
        for runs in (comparison, comparison["paged"], dict(comparison.results)):
            figure = draw(runs)
            labels = [axes.get_ylabel() for axes in figure.axes] + [
                axes.get_xlabel() for axes in figure.axes
            ]
            assert any("(" in label for label in labels), name
            assert figure.legends, name


def test_the_memory_map_shows_the_recorded_causes(comparison: kvsim.Comparison) -> None:
    figure = kvsim.plot.memory_map(comparison)
    assert len(figure.axes) == 3
    ends = {axes.get_xlim()[1] for axes in figure.axes}
    assert len(ends) == 1  # one time axis, so that a longer run looks longer
    image = figure.axes[0].images[0].get_array()
    assert set(np.unique(image)) <= {int(cause) for cause in Cause}
    assert Cause.INTERNAL in image
    assert Cause.INTERNAL not in figure.axes[2].images[0].get_array()[:, :5]


def test_a_memory_map_needs_its_recording() -> None:
    trace = workloads.fixed(num_requests=3)
    result = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb")
    with pytest.raises(ValueError, match="run it with record_memory_map=True"):
        kvsim.plot.memory_map(result)


def lines(renderable: object, width: int) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get().splitlines()


def test_the_comparison_fits_eighty_columns(comparison: kvsim.Comparison) -> None:
    shown = lines(comparison_table(comparison), 80)
    row = next(line for line in shown if line.startswith("contiguous-pow2"))
    summary = comparison["contiguous-pow2"].summary
    assert "…" not in "".join(shown)
    assert percent(summary["kv_cache"]["token_states"]) in row
    assert milliseconds(summary["mean_ttft_ms"]) in row
    whole = lines(comparison_table(comparison), 100)
    row = next(line for line in whole if line.startswith("contiguous-pow2"))
    assert milliseconds(summary["mean_tpot_ms"]) in row
    assert percent(summary["prefix_cache_hit_rate"]) in row
    assert any("2 replicas" in line for line in shown)


def test_the_verdict_compares_the_most_with_the_least_wasteful(
    comparison: kvsim.Comparison,
) -> None:
    text = " ".join(lines(comparison_table(comparison), 200))
    assert "paged wastes" in text
    assert "contiguous-max" in text.split("paged wastes")[1]


def test_run_table(comparison: kvsim.Comparison) -> None:
    text = "\n".join(lines(run_table(comparison["paged"], comparison.workload), 100))
    for word in ("TTFT", "TPOT", "ITL", "E2E", "preemptions", "prefix cache hit rate", "vllm"):
        assert word in text


def test_numbers_as_people_read_them() -> None:
    assert number(1234.5) == "1,234"
    assert number(None) == percent(None) == milliseconds(None) == "-"
    assert [milliseconds(v) for v in (3.14159, 250, 12_345, 290_161)] == [
        "3.1 ms",
        "250 ms",
        "12.3 s",
        "290 s",
    ]
    assert gib(3 * 2**30) == "3.00 GiB"


def test_every_figure_names_model_gpu_and_requests(comparison: kvsim.Comparison) -> None:
    for draw in plot.FIGURES.values():
        head = draw(comparison).get_suptitle()
        config = next(iter(comparison.results.values())).config
        assert str(config.model) in head
        assert str(config.gpu) in head
        assert "requests/s" in head


def test_a_figure_of_one_replica_says_so(comparison: kvsim.Comparison) -> None:
    for draw in (plot.memory, plot.memory_map):
        assert "replica 0 of 2" in draw(comparison).axes[0].get_title(loc="left")


def test_a_thinned_out_line_tells_its_peak() -> None:
    trace = workloads.fixed(prompt=40, output=9_000, num_requests=3, request_rate=math.inf)
    run = kvsim.simulate(trace, model="llama-3.1-8b", gpu="a100-80gb", record_steps=True)
    assert plot.memory(run).axes[0].get_xlabel() == "time (s)"
    run.memory["num_running"] = 1  # as if the peak lay between two samples
    axes = plot.memory(run).axes[0]
    assert axes.get_title(loc="left") == "paged: 3 running at most"
    assert axes.get_xlabel().startswith("time (s); a sample every ")


def test_a_flat_bar_has_its_number_beside_it() -> None:
    comparison = kvsim.compare(workloads.sharegpt(num_requests=60), ["contiguous-max", "paged"])
    axes = plot.waste(comparison).axes[0]
    keys = [cause.summary_key for cause in HELD]
    shares = [100 * row["kv_cache"][key] for row in comparison.rows for key in keys]
    assert any(0.05 <= share < 3 for share in shares)
    written = sorted(text.get_text() for text in axes.texts)
    assert written == sorted(f"{share:.1f}" for share in shares if share >= 0.05)


def test_an_axis_of_powers_is_logarithmic_and_marks_what_was_run() -> None:
    rows = [
        {"n": n, "output_throughput": 1.0, "p99_ttft_ms": 1.0, "mean_tpot_ms": 1.0}
        for n in (1, 4, 16)
    ]
    figure = sweep(rows, "n", head="a model on a card")
    axes = figure.axes[0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "4", "16"]
    assert "a model on a card" in figure.get_suptitle()
    assert sweep(rows[:2], "n").axes[0].get_xscale() == "linear"


def test_the_99th_percentile_can_be_read_off_the_latency_figure() -> None:
    trace = workloads.sharegpt(num_requests=400)
    run = kvsim.simulate(trace, goodput={"ttft": 500.0})
    axes = plot.latency(run).axes[0]
    drawn = axes.lines[0]
    at = float(np.asarray(drawn.get_xdata())[np.asarray(drawn.get_ydata()) >= 0.01][-1])
    assert at == pytest.approx(run.summary["p99_ttft_ms"] / 1000, rel=0.05)
    assert axes.get_yscale() == "log"
    plot.latency(run).canvas.draw()
    format_share = axes.yaxis.get_major_formatter()
    assert [format_share(share) for share in (1, 0.01, 0.001)] == ["100 %", "1 %", "0.1 %"]
    assert [list(line.get_xdata()) for line in axes.lines].count([0.5, 0.5]) == 1
    assert not set(LINES) & {colour for colour, _ in plot.CAUSES.values()}


def test_a_run_of_one_answer_or_none_is_drawn_without_a_warning() -> None:
    """One value of 0.0999999... s makes no limits of its own; nobody has done anything by then."""
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "data_parallel_size": 2}
    one = workloads.fixed(prompt=100, output=5, num_requests=1, request_rate=1.0)
    answered = kvsim.simulate(one, **options, cost_model="constant+seconds=0.02")
    answered.requests["arrival_time"] = 0.0
    answered.requests["finish_time"] = float.fromhex("0x1.9999999999997p-4")
    plot.latency(answered).canvas.draw()
    two = kvsim.Trace.from_arrays([0.0, 0.0], [100, 200_000], [5, 5])
    nothing = kvsim.simulate(two, **options, horizon=1e-9, cost_model="constant+seconds=0.02")
    plot.fleet(replace(nothing, memory=nothing.memory[:0])).canvas.draw()


@pytest.mark.long
def test_a_memory_that_serves_nothing_stands_in_every_figure(tmp_path: Path) -> None:
    """900 MB hold no request of 8,192 tokens reserved, and many blocks."""
    options = ["--model", "llama-3-8b", "--gpu", "a100-40gb", "--num-requests", "20"]
    memory = ["--kv-cache-memory-bytes", "900000000", "--allocators", "contiguous-max,paged"]
    main(["compare", *options, *memory, "--out", str(tmp_path / "out")])
    assert {"memory.png", "memory_map.png"} <= {one.name for one in (tmp_path / "out").iterdir()}
    nothing = kvsim.simulate(
        kvsim.Trace.from_arrays([0.0], [9000], [5]), model="llama-3-8b", gpu="a100-80gb"
    )
    for draw in (plot.memory, plot.memory_map):
        (axes, *_) = draw(nothing).axes
        assert axes.get_title(loc="left") == "paged: no request was served"


@pytest.mark.long
def test_a_fleets_queues_are_those_of_its_requests() -> None:
    """Replicas are mostly idle, and one fails: samples of its steps would say little."""
    trace = workloads.fixed(prompt=200, output=100, num_requests=200, request_rate=2.0)
    result = kvsim.simulate(
        trace,
        model="llama-3.1-8b",
        gpu="h100-sxm",
        data_parallel_size=3,
        record_memory_map=True,
        failures="at+time=30+detection=5",
        cold_start=20,
        max_num_seqs=1,
    )
    rows, start = result.requests, float(trace.arrival_time[0])
    (axes,) = (a for a in kvsim.plot.fleet(result).axes if a.get_ylabel() == "requests")
    lines = {line.get_label(): line.get_data() for line in axes.lines}
    times = np.asarray(lines["running"][0]) + start
    for label, begin, end in (
        ("waiting", "arrival_time", "first_scheduled_time"),
        ("running", "first_scheduled_time", "finish_time"),
    ):
        number = [int(((rows[begin] <= t) & (rows[end] > t)).sum()) for t in times]
        assert np.asarray(lines[label][1]).tolist() == number
        assert max(number) > 0
    (image,) = kvsim.plot.memory_map(result).axes[0].images
    columns = np.ma.getmaskarray(image.get_array()).all(axis=0)
    left, right, *_ = image.get_extent()
    shown = left + (right - left) * np.arange(len(columns)) / len(columns)
    assert (columns == (shown > start + 30)).all()
