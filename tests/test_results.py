"""Metrics, tables, saving and loading."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvsim
import workloads
from kvsim.config import Config, RunConfig
from kvsim.records import engine as records
from kvsim.records import paged
from kvsim.records.engine import Replica
from kvsim.records.memory import Flat, Memory, Objects, Zeros, column, copied
from kvsim.results.metrics import Pool, latencies, summarize
from kvsim.results.replications import average
from kvsim.results.result import TABLES
from kvsim.results.tables import MAX_MEMORY_SAMPLES, REQUESTS, FinishReason
from kvsim.results.totals import Totals, bin_middle, gap_bin
from kvsim.rules.recorder import record_gap
from kvsim.testing import equal_tables


@pytest.fixture(scope="module")
def result() -> kvsim.Result:
    trace = workloads.sharegpt(num_requests=60, request_rate=5, seed=0)
    return kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="a100-80gb",
        record_steps=True,
        record_memory_map=True,
        goodput={"ttft": 60, "tpot": 13},
    )


def requests(*rows: tuple[float, float, float, float, int]) -> np.ndarray:
    """Make a table of (arrival, scheduled, first token, finish, output tokens)."""
    table = np.zeros(len(rows), dtype=REQUESTS)
    for i, (arrival, scheduled, first, finish, output) in enumerate(rows):
        table[i] = (i, 0, arrival, scheduled, first, finish, 10, output, 0, 0, 0, -1, 0.0)
    return table


def test_latencies_by_their_definitions() -> None:
    table = requests((1.0, 1.5, 2.0, 6.0, 5), (2.0, 3.0, 3.5, 3.5, 1))
    values = latencies(table)
    assert values["ttft"].tolist() == [1.0, 1.5]
    assert values["e2el"].tolist() == [5.0, 1.5]
    assert values["tpot"][0] == 1.0
    assert math.isnan(values["tpot"][1])  # one token has no time per further token
    totals = Totals(token_gaps={gap_bin(1.0): 4})
    summary = summarize(table, [totals], Pool(10, 10, 16, 1000), end_time=6.0)
    assert summary["duration"] == 5.0
    assert summary["mean_tpot_ms"] == summary["mean_itl_ms"] == 1000.0
    assert summary["mean_normalized_latency_ms"] == (1000.0 + 1500.0) / 2
    assert summary["request_throughput"] == 2 / 5
    assert summary["output_throughput"] == 6 / 5
    assert summary["total_token_throughput"] == 26 / 5


def test_goodput_counts_requests_that_meet_every_target() -> None:
    table = requests((0.0, 0.0, 0.1, 1.1, 11), (0.0, 0.0, 0.3, 1.3, 11), (0.0, 0.0, 0.1, 10.0, 1))

    def goodput(**targets: float) -> float:
        args = ([Totals()], Pool(1, 1, 1, 1))
        return summarize(table, *args, end_time=10.0, goodput=targets)["request_goodput"]

    assert goodput(ttft=200) == 0.2
    assert goodput(ttft=200, tpot=100.1) == 0.2  # the single token has no TPOT to miss
    assert goodput(ttft=200, e2el=5000) == 0.1
    assert goodput(tpot=50) == 0.1


def test_a_run_without_a_completed_request_has_no_latencies() -> None:
    table = requests((0.0, math.nan, math.nan, math.nan, 0))
    table["finish_reason"] = 1
    summary = summarize(table, [Totals()], Pool(1, 1, 16, 0), end_time=0.0)
    assert summary["completed"] == 0
    assert summary["mean_ttft_ms"] is summary["p99_itl_ms"] is summary["request_throughput"] is None
    assert summary["kv_cache"]["token_states"] is None
    json.dumps(summary, allow_nan=False)


@given(st.floats(1e-6, 1e5))
def test_gap_bins_are_a_thousandth_wide(seconds: float) -> None:
    assert bin_middle(gap_bin(seconds)) == pytest.approx(seconds, rel=0.0005)
    state = Replica(gaps=Zeros())
    record_gap(state, seconds, 3)
    assert state.gaps == {gap_bin(seconds): 3}
    record_gap(state, 2 * seconds, 1)
    assert state.first_gap == gap_bin(seconds)


def test_every_token_after_the_first_has_a_gap(result: kvsim.Result) -> None:
    gaps = result.requests["num_output_tokens"] - 1
    assert result.token_gaps["count"].sum() == gaps.sum() > 0


def test_itl_percentiles_from_bins_agree_with_exact_gaps() -> None:
    """Under constant steps all gaps are one step; a queue behind a prompt makes a few longer."""
    trace = kvsim.Trace.from_arrays([0.0, 0.35], [100, 100], [30, 5])
    r = kvsim.simulate(trace, gpu="a100-80gb", cost_model="constant+seconds=0.1")
    assert r.summary["median_itl_ms"] == pytest.approx(100, rel=5e-4)
    assert r.summary["mean_itl_ms"] == pytest.approx(100, rel=1e-9)


def test_the_summary_has_exact_averages() -> None:
    """All requests are there at once, so every state lasts from one step's schedule to the next."""
    trace = workloads.sharegpt(num_requests=40, request_rate=math.inf, seed=0)
    r = kvsim.simulate(
        trace,
        gpu="a100-80gb",
        num_gpu_blocks_override=600,
        async_scheduling=False,
        record_steps=True,
    )
    end = r.requests["finish_time"].max()
    lasted = np.diff(np.append(r.memory["time"], end))
    assert len(r.memory) == r.summary["num_steps"] == len(r.steps)
    integrals = {
        name: float((r.memory[name] * lasted).sum())
        for name in ("token_states", "reservation", "internal", "external", "free", "cached")
    }
    held = sum(integrals[n] for n in ("token_states", "reservation", "internal", "external"))
    cache = r.summary["kv_cache"]
    for name in ("token_states", "reservation", "internal", "external"):
        key = name if name in cache else f"{name}_fragmentation"
        assert cache[key] == pytest.approx(integrals[name] / held, rel=1e-9)
    running = float((r.memory["num_running"] * lasted).sum()) / r.summary["duration"]
    assert r.summary["mean_running"] == pytest.approx(running, rel=1e-9)
    usage = float((r.memory["kv_usage"] * lasted).sum()) / r.summary["duration"]
    assert cache["mean_usage"] == pytest.approx(usage, rel=1e-9)
    assert cache["peak_usage"] == r.memory["kv_usage"].max()
    assert r.summary["num_preemptions"] == r.steps["num_preempted"].sum() > 0
    computed = r.requests["num_prompt_tokens"] + r.requests["num_output_tokens"] - 1
    again = r.summary["num_recomputed_tokens"]
    assert r.steps["num_scheduled_tokens"].sum() == computed.sum() + again
    assert r.steps["duration"].sum() == pytest.approx(r.summary["duration"], rel=1e-9)


def test_memory_samples_thin_out_by_halves() -> None:
    trace = kvsim.Trace.from_arrays([0.0], [10], [10_000])
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "async_scheduling": False}
    r = kvsim.simulate(trace, cost_model="constant", **options)
    steps = r.summary["num_steps"]
    assert steps > 2 * MAX_MEMORY_SAMPLES
    assert MAX_MEMORY_SAMPLES / 2 <= len(r.memory) <= MAX_MEMORY_SAMPLES
    gaps = np.round(np.diff(r.memory["time"]) / 0.02).astype(int)
    assert set(gaps.tolist()) == {4}
    assert r.memory["time"][0] == 0.0


def test_memory_map_rows_are_the_memory_samples(result: kvsim.Result) -> None:
    assert result.memory_map.shape == (len(result.memory), 1024)
    shares = (result.memory_map == 1).mean(axis=1)
    bytes_ = result.memory["token_states"] / result.summary["kv_cache"]["bytes"]
    assert np.abs(shares - bytes_).max() < 0.02


def test_save_and_load_give_the_same_run(result: kvsim.Result, tmp_path: Path) -> None:
    result.save(tmp_path / "run")
    again = kvsim.load(tmp_path / "run")
    for table, dtype in TABLES.items():
        assert getattr(result, table).dtype == dtype
        assert equal_tables(getattr(again, table), getattr(result, table))
    assert np.array_equal(again.memory_map, result.memory_map)
    assert again.summary == result.summary
    assert again.provenance == result.provenance
    assert again.config.model_dump() == result.config.model_dump() | {
        name: getattr(again.config, name)
        for name in RunConfig.model_fields
        if name not in Config.model_fields
    }
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "config.toml",
        "memory.parquet",
        "memory_map.npy",
        "provenance.json",
        "requests.parquet",
        "steps.parquet",
        "summary.json",
        "token_gaps.parquet",
    ]


def test_loading_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a run directory"):
        kvsim.load(tmp_path)
    (tmp_path / "paged").mkdir()
    (tmp_path / "paged" / "summary.json").write_text("{}")
    with pytest.raises(ValueError, match="it holds the runs paged"):
        kvsim.load(tmp_path)
    with pytest.raises(ValueError, match="cannot be read"):
        kvsim.load(tmp_path / "paged")


def test_to_pandas(result: kvsim.Result) -> None:
    frame = result.to_pandas()
    assert len(frame) == 60
    assert list(frame.columns) == list(REQUESTS.names or ())
    assert len(result.to_pandas("steps")) == len(result.steps)
    with pytest.raises(ValueError, match="unknown table 'x'"):
        result.to_pandas("x")


def test_finish_reasons_are_names_in_a_frame_and_codes_in_an_array() -> None:
    trace = kvsim.Trace.from_arrays([0.0, 0.0, 9.0], [50, 4000, 50], [5, 5, 5])
    limits = {"max_model_len": 2048, "horizon": 5.0, "backend": "python"}
    run = kvsim.simulate(trace, model="opt-125m", gpu="a100-80gb", **limits)  # type: ignore[arg-type]
    assert run.requests["finish_reason"].tolist() == [0, 1, 3]
    frame = run.to_pandas()
    assert frame["finish_reason"].tolist() == ["finished", "rejected", "unsent"]
    assert (frame["finish_reason"] == "finished").sum() == 1
    assert list(frame["finish_reason"].cat.categories) == [r.name.lower() for r in FinishReason]


@pytest.mark.parametrize("table", ["steps", "block_events"])
def test_a_table_that_was_not_recorded_says_so(table: str) -> None:
    trace = kvsim.Trace.from_arrays([0.0], [50], [5])
    run = kvsim.simulate(trace, model="opt-125m", gpu="a100-80gb", backend="python")
    with pytest.raises(ValueError, match=rf"^{table}: not recorded; run with record_{table}=True$"):
        run.to_pandas(table)


def test_equal_tables_sees_one_bit() -> None:
    a = requests((0.0, math.nan, 1.0, 2.0, 5))
    b = a.copy()
    assert equal_tables(a, b)
    b["finish_time"] = np.nextafter(2.0, 3.0)
    assert not equal_tables(a, b)
    assert not equal_tables(a, np.concatenate([a, a]))


def test_average_of_replications() -> None:
    summaries = [
        {"x": 1.0, "n": 2, "y": None, "kv_cache": {"z": 4.0}, "rejections": {"a": 1}},
        {"x": 3.0, "n": 2, "y": 1.0, "kv_cache": {"z": 8.0}, "rejections": {}},
    ]
    mean = average(summaries)
    assert mean["x"] == 2.0
    assert mean["y"] is None
    assert mean["kv_cache"] == {"z": 6.0}
    assert mean["rejections"] == {"a": 0.5}
    assert mean["replications"] == 2
    assert mean["ci95"]["x"] == pytest.approx(12.706 * 1.0)
    assert mean["ci95"]["n"] == 0
    assert average(summaries[:1]) is summaries[0]


def test_replicas_sum_up() -> None:
    trace = workloads.sharegpt(num_requests=80, request_rate=20, seed=0)
    one = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb")
    two = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb", data_parallel_size=2)
    assert set(two.requests["replica"]) == {0, 1}
    assert two.summary["completed"] == 80
    # half the load each: the sum of running requests stays about the same, usage halves
    assert two.summary["mean_running"] == pytest.approx(one.summary["mean_running"], rel=0.35)
    usage = [r.summary["kv_cache"]["mean_usage"] for r in (one, two)]
    assert usage[1] == pytest.approx(usage[0] / 2, rel=0.35)


def test_a_long_list_has_all_its_records_though_few_were_touched() -> None:
    rows = Objects().records(paged.Block, 5000)
    rows[4999].key = 7
    assert column(rows, "key") == [0] * 4999 + [7]
    assert len(rows) == 5000 > len([*rows.values()])  # type: ignore[attr-defined]
    assert column(rows, "key") == [row.key for row in rows]


def test_two_names_of_one_list_are_replaced_together() -> None:
    """Nothing else lies in this memory that could stand for what was let go."""
    memory = Flat()
    record = memory.one(records.Trace)
    for size in (3, 5, 9):
        shared = memory.list_of(np.arange(size))
        memory.replace(record, ids=shared, arrival_time=shared)
        assert list(record.ids) == list(record.arrival_time) == list(range(size))
    assert len(memory.lists) == 1


@pytest.mark.parametrize("given", ["ints", "floats"])
def test_a_list_of_another_width_is_refused(given: str) -> None:
    """Compiled rules would read between its items."""
    memory = Flat()
    table = memory.one(paged.BlockTable)
    with pytest.raises(TypeError, match=r"BlockTable.blocks: 8 bytes an item, not 4"):
        table.blocks = getattr(memory, given)(4)
    table.blocks = memory.shorts(4)
    assert list(table.blocks) == [0, 0, 0, 0]


@pytest.mark.parametrize("memory", [Objects(), Flat()])
def test_a_reset_record_has_its_first_values_and_keeps_its_lists(memory: Memory) -> None:
    """A free record is used again, and its lists are as long as the host made them."""
    table = memory.one(paged.BlockTable)
    table.blocks = memory.shorts(4, 7)
    first = copied(table)
    for name, value in paged.BlockTable.defaults().items():
        setattr(table, name, value + 3)
    table.reset()
    assert copied(table) == first
    assert list(table.blocks) == [7, 7, 7, 7]
