"""Metrics and timelines: strict readers, and sums that equal the tables of the run."""

from __future__ import annotations

import gzip
import json
import math
import re
import shlex
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from refused import refused

import kvsim
import workloads
from kvsim.cli import main
from kvsim.report.metrics import exposition
from kvsim.report.timeline import Window, events_of
from kvsim.results.block_events import BlockEvent
from kvsim.results.idle import idle_times, memory_with_gaps
from kvsim.results.phases import marks_of, phases

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

OPTIONS: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "l4",
    "max_model_len": 1024,
    "record_steps": True,
    "record_block_events": True,
}
RUNS: dict[str, dict[str, Any]] = {
    "short of blocks": {"num_gpu_blocks_override": 80},
    "two replicas": {"num_gpu_blocks_override": 80, "data_parallel_size": 2},
    "prompts apart": {"num_prefill_workers": 1, "num_decode_workers": 1},
    "stages": {"pipeline_parallel_size": 2, "num_gpu_blocks_override": 80},
}


@pytest.fixture(scope="module")
def runs() -> dict[str, kvsim.Result]:
    trace = workloads.sharegpt(num_requests=40, request_rate=4.0, seed=1)
    return {name: kvsim.simulate(trace, **OPTIONS, **own) for name, own in RUNS.items()}


@pytest.fixture(autouse=True)
def few_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.report.metrics.MOST_POINTS", 30)


# -- OpenMetrics -----------------------------------------------------------------------------------

SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)\{((?:[a-z_]+=\"(?:[^\"\\\n]|\\.)*\",?)*)\} (\S+) (\S+)")
SUFFIXES = {"gauge": {""}, "counter": {"_total"}, "histogram": {"_bucket", "_count", "_sum"}}
Samples = dict[tuple[str, str], list[tuple[float, float]]]


def read_metrics(lines: Iterable[str]) -> Samples:
    """Read OpenMetrics text strictly: families in one piece, times in order, an end."""
    found: Samples = defaultdict(list)
    done: set[str] = set()
    name, kind, ended = "", "", False
    for line in lines:
        assert not ended
        if line == "# EOF":
            ended = True
        elif line.startswith("# TYPE "):
            done.add(name)
            name, kind = line.split()[2:]
            assert name not in done
        elif line.startswith("# HELP "):
            assert line.split()[2] == name
        else:
            whole, pairs, value, time = SAMPLE.fullmatch(line).groups()  # type: ignore[union-attr]
            assert whole.startswith(name)
            assert whole.removeprefix(name) in SUFFIXES[kind]
            series = found[whole, pairs]
            assert not series or series[-1][0] < float(time)
            assert kind == "gauge" or not series or series[-1][1] <= float(value)
            series.append((float(time), float(value)))
    assert ended
    return found


def last(samples: Samples, name: str, **labels: str) -> float:
    """Return the sum of the last samples of a metric, over all other labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    shown = [
        series[-1][1]
        for (full, pairs), series in samples.items()
        if full == f"vllm:{name}" and all(one in pairs.split(",") for one in wanted)
    ]
    assert shown
    return math.fsum(shown)


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_metrics_end_with_the_sums_of_the_tables(name: str, runs: dict[str, kvsim.Result]) -> None:
    result = runs[name]
    samples = read_metrics(exposition(result))
    s, rows = result.summary, result.requests
    assert last(samples, "prompt_tokens_total") == s["total_input_tokens"]
    assert last(samples, "generation_tokens_total") == s["total_output_tokens"]
    assert last(samples, "request_success_total", finished_reason="length") == s["completed"]
    assert last(samples, "prefix_cache_hits_total") == rows["num_cached_tokens"].sum()
    assert last(samples, "num_preemptions_total") == s["num_preemptions"]
    for metric, key in (
        ("time_to_first_token_seconds", "ttft"),
        ("e2e_request_latency_seconds", "e2el"),
    ):
        assert last(samples, f"{metric}_count") == s["completed"]
        mean = last(samples, f"{metric}_sum") / s["completed"]
        assert mean == pytest.approx(s[f"mean_{key}_ms"] / 1000)
    parts = ("queue", "prefill", "decode")
    total = sum(last(samples, f"request_{part}_time_seconds_sum") for part in parts)
    assert total == pytest.approx(last(samples, "e2e_request_latency_seconds_sum"))
    gaps = int((rows["num_output_tokens"] - 1).sum())
    assert last(samples, "inter_token_latency_seconds_count") == gaps
    mean = last(samples, "inter_token_latency_seconds_sum") / gaps
    assert mean == pytest.approx(s["mean_itl_ms"] / 1000, rel=1e-3)
    assert last(samples, "num_requests_running") == last(samples, "kv_cache_usage_perc") == 0
    under = (rows["first_token_time"] - rows["arrival_time"] <= 0.5).sum()
    assert last(samples, "time_to_first_token_seconds_bucket", le="0.5") == under
    steps = result.steps["num_scheduled_tokens"]
    assert last(samples, "iteration_tokens_total_sum") == steps.sum()


@pytest.mark.long
def test_metrics_count_what_has_happened_so_far(runs: dict[str, kvsim.Result]) -> None:
    result = runs["short of blocks"]
    samples = read_metrics(exposition(result))
    tokens = result.requests["first_token_time"]
    (counted,) = (v for k, v in samples.items() if k[0] == "vllm:prompt_tokens_total")
    for time, value in counted[::17]:
        assert value == result.requests["num_prompt_tokens"][tokens <= time].sum()
    evicted = int((result.block_events["kind"] == BlockEvent.EVICT).sum())
    assert evicted > 0
    assert last(samples, "kv_block_lifetime_seconds_count") == evicted


def test_a_name_cannot_break_out_of_its_label() -> None:
    from kvsim.report.openmetrics import labels

    assert labels({"model_name": 'a"b\\c\nd'}) == r'{model_name="a\"b\\c\nd"}'


def test_idle_gaps_are_seen() -> None:
    trace = workloads.fixed(prompt=50, output=5, num_requests=3, request_rate=0.2)
    result = kvsim.simulate(trace, **OPTIONS)
    ends = result.requests["finish_time"].tolist()
    assert idle_times(result, 0).tolist() == ends
    rows = memory_with_gaps(result, 0)
    free = rows[np.isin(rows["time"], ends)]
    assert (free["free"] == result.summary["kv_cache"]["bytes"]).all()
    assert free["cached"].min() > 0
    busy = kvsim.simulate(
        workloads.fixed(prompt=50, output=50, num_requests=3, request_rate=50.0), **OPTIONS
    )
    assert len(idle_times(busy, 0)) == 1


# -- timelines -------------------------------------------------------------------------------------


def read_timeline(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Check trace events as a viewer needs them; return slices by kind and counts by phase."""
    open_slices: dict[Any, list[tuple[str, float]]] = defaultdict(list)
    slices: dict[str, list[Any]] = defaultdict(list)
    lanes: dict[tuple[int, int], int] = {}
    flows: dict[Any, Any] = {}
    found: dict[str, Any] = defaultdict(int)
    for event in events:
        kind, ts = event["ph"], event["ts"]
        found[kind] += 1
        assert isinstance(event["pid"], int)
        assert event["name"]
        if kind == "X":
            lane = event["pid"], event["tid"]
            start, stop = round(ts * 1e3), round((ts + event["dur"]) * 1e3)
            assert lanes.get(lane, 0) <= start <= stop  # not by one nanosecond
            lanes[lane] = stop
            slices["step"].append((ts, event["dur"], event))
        elif kind == "b":
            stack = open_slices[event["pid"], event["id2"]["local"]]
            assert not stack or stack[-1][1] <= ts
            stack.append((event["name"], ts))
        elif kind == "e":
            begun, start = open_slices[event["pid"], event["id2"]["local"]].pop()
            assert begun == event["name"]
            assert ts >= start
            slices[begun.split()[0]].append((start, ts - start, event))
        elif kind == "s":
            flows[event["id"]] = event
        elif kind == "f":
            assert flows[event["id"]]["ts"] <= ts
            assert flows[event["id"]]["pid"] != event["pid"]
        else:
            assert kind in "MCin"
    assert not any(open_slices.values())
    return {"slices": slices, "counts": found, "flows": flows}


def seconds(read: dict[str, Any], name: str) -> float:
    return math.fsum(length for _, length, _ in read["slices"][name]) / 1e6


@pytest.mark.long
@pytest.mark.parametrize("name", RUNS)
def test_slices_sum_to_the_tables(name: str, runs: dict[str, kvsim.Result]) -> None:
    result = runs[name]
    read = read_timeline(events_of(result, Window()))
    rows, steps = result.requests, result.steps
    assert len(read["slices"]["request"]) == len(rows)
    assert seconds(read, "request") == pytest.approx(
        (rows["finish_time"] - rows["arrival_time"]).sum(), abs=1e-6
    )
    assert seconds(read, "queue") == pytest.approx(
        (rows["first_scheduled_time"] - rows["arrival_time"]).sum(), abs=1e-6
    )
    parts = ("queue", "prefill", "transfer", "decode", "preempted")
    assert sum(seconds(read, part) for part in parts) == pytest.approx(seconds(read, "request"))
    assert seconds(read, "step") == pytest.approx(steps["duration"].sum(), abs=1e-6)
    tokens = sum(one["args"]["num_scheduled_tokens"] for _, _, one in read["slices"]["step"])
    assert tokens == steps["num_scheduled_tokens"].sum()
    assert len(read["slices"]["preempted"]) == result.summary["num_preemptions"]
    if name == "prompts apart":
        moved = int((rows["prefill_replica"] >= 0).sum())
        assert len(read["slices"]["transfer"]) == len(read["flows"]) == moved > 0
        assert seconds(read, "transfer") >= rows["transfer_time"].sum()
    if name == "short of blocks":
        assert seconds(read, "preempted") > 0


def test_phases_of_a_preempted_request_by_hand(runs: dict[str, kvsim.Result]) -> None:
    result = runs["short of blocks"]
    row = result.requests[result.requests["num_preemptions"] == 1][0]
    marks = marks_of(result)[int(row["request_id"])]
    assert [kind for _, kind in marks] == [BlockEvent.ADMIT, BlockEvent.PREEMPT, BlockEvent.ADMIT]
    cut = phases(row, marks, math.inf)
    assert ("preempted", marks[1][0], marks[2][0]) in cut
    assert cut[0][:2] == ("queue", row["arrival_time"])
    assert all(a[2] == b[1] for a, b in pairwise(cut))


def test_a_window_shows_a_part(runs: dict[str, kvsim.Result]) -> None:
    result = runs["short of blocks"]
    read = read_timeline(events_of(result, Window(2.0, 4.0, 3)))
    assert len(read["slices"]["request"]) == 3
    for start, length, _ in read["slices"]["step"]:
        assert start <= 4e6
        assert start + length >= 2e6
    assert len(read["slices"]["step"]) < len(result.steps)


@pytest.mark.parametrize("text", ["", "3", "4:2", "a:b", "-1:2"])
def test_a_wrong_window_is_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="--window"):
        Window.of(text, None)


# -- the command line ------------------------------------------------------------------------------

RUN = ("run", "--model", "llama-3-8b", "--gpu", "l4", "--num-requests", "5")


def test_run_writes_both_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics, timeline = tmp_path / "m.txt", tmp_path / "t.json.gz"
    main([*RUN, "--metrics", str(metrics), "--timeline", str(timeline), "--window", ":5"])
    read_metrics(metrics.read_text().splitlines())
    events = json.loads(gzip.decompress(timeline.read_bytes()))["traceEvents"]
    assert read_timeline(events)["counts"]["X"] > 0
    assert "perfetto" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.txt", "t.json.gz"]


def test_a_window_behind_the_end_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*RUN, "--timeline", str(tmp_path / "t.json.gz"), "--window", "1e6:2e6"])
    assert "--window 1e6:2e6: contains nothing, as the run takes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--window", "1:2"), "--window: needs --timeline"),
        (("--timeline", "t.json"), "must end with .json.gz"),
        (("--timeline", "no/t.json.gz"), "no such directory"),
        (("--timeline", "t.json.gz", "--window", "2:1"), "must be FROM:TO"),
        (("--metrics", "m.txt", "--replications", "2"), "--metrics: a file holds one run"),
    ],
)
def test_what_cannot_be_written_is_refused_first(
    options: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(capsys, shlex.join([*RUN, *options]))
    assert not list(tmp_path.iterdir())


def test_steps_that_overlap_by_nanoseconds_follow_each_other(runs: dict[str, kvsim.Result]) -> None:
    result = runs["short of blocks"]
    steps = result.steps[:3].copy()
    steps["start_time"], steps["duration"] = [0.0, 1.0, 2.0], [1.000000003, 1.0, 1.0]
    found = [e for e in events_of(replace(result, steps=steps), Window()) if e["ph"] == "X"]
    assert {event["tid"] for event in found} == {0}
    ends = [round(1e3 * (event["ts"] + event["dur"])) for event in found]
    assert [round(1e3 * event["ts"]) for event in found[1:]] == ends[:-1]
