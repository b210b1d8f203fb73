"""Benchmark files of four kinds: what was sent, and what the client saw."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.calibration.read_bench import read_bench

#: Three requests, the second of which failed: sent at 10.0, 10.5 and 11.0 s.
DETAILED: dict[str, Any] = {
    **{"date": "20260101-000000", "backend": "vllm", "model_id": "m", "num_prompts": 3},
    **{"request_rate": 2.0, "burstiness": 1.0, "max_concurrency": None, "duration": 3.0},
    **{"completed": 2, "total_input_tokens": 300, "total_output_tokens": 8},
    **{"mean_ttft_ms": 150.0, "mean_tpot_ms": 25.0, "input_lens": [100, 50, 200]},
    **{"output_lens": [5, 0, 3], "ttfts": [0.1, 0.0, 0.2], "errors": ["", "timeout", ""]},
    **{"itls": [[0.02, 0.02, 0.02, 0.02], [], [0.03, 0.03]], "start_times": [10.0, 10.5, 11.0]},
}


def saved(folder: Path, content: Any, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_detailed_result_tells_every_request_that_succeeded(tmp_path: Path) -> None:
    (run,) = read_bench(saved(tmp_path, DETAILED))
    (trace,) = run.traces
    assert trace.arrival_time.tolist() == [0.0, 1.0]
    assert trace.num_prompt_tokens.tolist() == [100, 200]
    assert trace.num_output_tokens.tolist() == [5, 3]
    assert run.ttft == pytest.approx(0.15)
    assert run.tpot == pytest.approx((0.02 + 0.03) / 2)
    assert run.notes == ()


def test_times_that_are_not_told_are_drawn_at_the_rate(tmp_path: Path) -> None:
    told = {**DETAILED, "start_times": None}
    (run,) = read_bench(saved(tmp_path, told))
    assert len(run.traces) == 3
    for trace in run.traces:
        assert trace.arrival_time[-1] == pytest.approx(2 / 2.0)  # the last of two at 2 a second
    assert "has no send times" in run.notes[0]


def test_a_closed_loop_comes_at_once_under_its_limit(tmp_path: Path) -> None:
    (run,) = read_bench(saved(tmp_path, DETAILED | {"max_concurrency": 4, "request_rate": "inf"}))
    assert run.max_concurrency == 4
    assert run.traces[0].arrival_time.tolist() == [0.0, 0.0]


def test_means_stand_for_every_request_unless_their_range_is_told(tmp_path: Path) -> None:
    kept = ("completed", "total_input_tokens", "total_output_tokens", "mean_ttft_ms")
    short = {name: DETAILED[name] for name in kept} | {"request_rate": "inf", "completed": 40}
    short |= {"total_input_tokens": 40 * 150, "total_output_tokens": 40 * 50}
    (run,) = read_bench(saved(tmp_path, short))
    assert set(run.traces[0].num_prompt_tokens.tolist()) == {150}
    assert run.tpot is None
    assert "has no lengths per request" in run.notes[0]
    (spread,) = read_bench(saved(tmp_path, short), range_ratio=0.2)
    lengths = spread.traces[0].num_prompt_tokens
    assert 120 <= lengths.min() < 140
    assert 160 < lengths.max() <= 180


def test_results_put_after_each_other_are_several_runs(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(DETAILED | {"mean_ttft_ms": n}) for n in (1.0, 2.0))
    assert [run.name for run in read_bench(saved(tmp_path, lines))] == [
        "result.json#1",
        "result.json#2",
    ]


def guide_row(start: float, prompt: int, output: int, ttft: float, gap: float) -> dict[str, Any]:
    return {
        **{"type_": "generative_request_stats", "request_start_time": start},
        **{"prompt_tokens": prompt, "output_tokens": output, "time_to_first_token_ms": ttft},
        **{"inter_token_latency_ms": gap, "time_per_output_token_ms": 999.0},
    }


def test_a_report_of_guidellm_has_a_run_per_strategy(tmp_path: Path) -> None:
    rows = [guide_row(5.0, 100, 10, 80.0, 20.0), guide_row(6.0, 120, 12, 120.0, 30.0)]
    benchmarks = [
        {"config": {"strategy": strategy}, "requests": {"successful": rows, "errored": [{}]}}
        for strategy in (
            {"type_": "constant", "rate": 1.0},
            {"type_": "concurrent", "streams": 2},
            {"type_": "synchronous"},
        )
    ]
    constant, concurrent, synchronous = read_bench(saved(tmp_path, {"benchmarks": benchmarks}))
    assert constant.traces[0].arrival_time.tolist() == [0.0, 1.0]
    assert constant.ttft == pytest.approx(0.1)
    assert constant.tpot == pytest.approx(0.025)  # and not what includes the first token
    assert (constant.max_concurrency, concurrent.max_concurrency) == (None, 2)
    assert synchronous.max_concurrency == 1


def test_a_stage_of_inference_perf_takes_tpot_from_the_whole_time(tmp_path: Path) -> None:
    stage = {
        "load_summary": {"count": 20, "requested_rate": 4.0, "achieved_rate": 4.0},
        "successes": {
            "count": 20,
            "latency": {
                "request_latency": {"mean": 2.1},
                "time_to_first_token": {"mean": 0.1},
                "time_per_output_token": {"mean": 0.5},
            },
            "prompt_len": {"mean": 547.0},
            "output_len": {"mean": 201.0},
        },
    }
    (run,) = read_bench(saved(tmp_path, stage))
    assert (run.ttft, run.tpot) == (pytest.approx(0.1), pytest.approx(2.0 / 200))
    assert run.traces[0].arrival_time[-1] == pytest.approx(5.0)


@pytest.mark.parametrize("nested", [False, True])
def test_requests_of_inference_perf_are_read_old_and_new(tmp_path: Path, nested: bool) -> None:
    rows = []
    for start in (100.0, 102.0):
        times = [start + 0.2, start + 0.25, start + 0.3]
        info: dict[str, Any] = {"input_tokens": 64, "output_tokens": 3, "output_token_times": times}
        if nested:
            info = {
                "request_metrics": {"text": {"input_tokens": 64}},
                "response_metrics": {"output_tokens": 3, "output_token_times": times},
            }
        rows.append({"start_time": start, "end_time": start + 0.3, "info": info, "error": None})
    rows.append({"start_time": 1.0, "end_time": 2.0, "info": {}, "error": {"error_type": "x"}})
    (run,) = read_bench(saved(tmp_path, rows))
    assert len(run.traces[0]) == 2
    assert (run.ttft, run.tpot) == (pytest.approx(0.2), pytest.approx(0.05))


def test_records_of_aiperf_tell_every_request_that_was_profiled(sample_data: Path) -> None:
    (run,) = read_bench(sample_data / "trace_formats" / "aiperf_profile_export.jsonl")
    (trace,) = run.traces
    assert trace.arrival_time.tolist() == [0.0, 0.25, 1.0]
    assert trace.num_prompt_tokens.tolist() == [300, 550, 320]
    assert trace.num_output_tokens.tolist() == [5, 9, 11]
    assert run.ttft == pytest.approx(0.1)
    assert run.tpot == pytest.approx((0.2 / 4 + 0.2 / 8 + 0.2 / 10) / 3)
    assert run.max_concurrency is None


def test_records_of_aiperf_need_streamed_answers(tmp_path: Path) -> None:
    record = {
        "metadata": {"request_start_ns": 5, "benchmark_phase": "profiling"},
        "metrics": {
            "input_sequence_length": {"value": 3, "unit": "tokens"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
            "request_latency": {"value": 3.0, "unit": "ms"},
        },
        "error": None,
    }
    path = saved(tmp_path, json.dumps(record))
    with pytest.raises(ValueError, match="has no time_to_first_token: profile with --streaming"):
        read_bench(path)


def test_logs_of_requests_are_read_by_their_columns(tmp_path: Path) -> None:
    csv = (
        "status,server_input_tokens,output_tokens,send_time_us,first_chunk_time_us,"
        "last_chunk_time_us\nok,10,3,1000000,1100000,1300000\nerror,10,3,1000000,,\n"
    )
    (run,) = read_bench(saved(tmp_path, csv, "log.csv"))
    assert (run.ttft, run.tpot) == (pytest.approx(0.1), pytest.approx(0.1))
    assert len(run.traces[0]) == 1


def test_a_measured_log_of_requests_has_its_own_means(sample_data: Path) -> None:
    path = sample_data / "serving/sharegpt300_vllm0.19/RTX4090_Llama-3.1-8B/requests.jsonl.gz"
    (run,) = read_bench(path)
    assert len(run.traces[0]) == 300
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    ttft = np.mean([row["first_token_ts"] - row["queued_ts"] for row in rows])
    assert run.ttft == pytest.approx(ttft)
    assert run.tpot is not None
    assert 0.01 < run.tpot < 0.1
    assert not math.isnan(run.tpot)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "must be a result of vllm bench serve"),
        ("{", "must be a result of vllm bench serve"),
        ("[1, 2]", "must be a result of vllm bench serve"),
        ({"mean_ttft_ms": 1.0, "completed": 0}, "has no successful request"),
        ({"mean_ttft_ms": 1.0, "completed": 3}, "damaged, or of an unknown version"),
        ({"benchmarks": [{"requests": {"successful": []}}]}, "has no successful request"),
        ({"successes": {"count": 3}}, "has no request rate; give the report of a stage"),
        ("prompt_tokens,output_tokens\n1,2\n", "a log of requests needs a time of sending"),
    ],
)
def test_what_is_no_benchmark_is_told_in_one_line(tmp_path: Path, content: Any, told: str) -> None:
    with pytest.raises(ValueError, match="--bench") as raised:
        read_bench(saved(tmp_path, content))
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)
