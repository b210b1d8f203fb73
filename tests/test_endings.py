"""Answers that end by EOS: what a scheduler does that has not foreseen it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.cli import main
from kvsim.engine.contents import Contents
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

L4 = {"model": "llama-3.1-8b", "gpu": "l4", "max_model_len": 512, "record_steps": True}


def served(trace: Trace, ends_by: str, **options: Any) -> kvsim.Result:
    given = {**L4, "backend": "python", "check_invariants": True, **options}
    result = kvsim.simulate(trace, ends_by=ends_by, **given)
    check_result(result)
    return result


def num_computed(result: kvsim.Result) -> int:
    return int(result.steps["num_scheduled_tokens"].sum())


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "surplus"),
    [
        ({}, 1),
        ({"async_scheduling": False}, 0),
        ({"pipeline_parallel_size": 2, "async_scheduling": True}, 1),
        ({"pipeline_parallel_size": 2}, 0),
        ({"scheduler": "vllm-v0"}, 0),
        ({"allocator": "virtual"}, 1),
        ({"allocator": "contiguous-oracle", "scheduler": "vllm"}, 1),
    ],
)
def test_an_unforeseen_end_costs_a_token_under_asynchronous_scheduling(
    options: dict[str, Any], surplus: int
) -> None:
    trace = Trace.from_arrays([0.0] * 3, [20, 30, 40], [5, 9, 12])
    known, unknown = served(trace, "length", **options), served(trace, "eos", **options)
    assert num_computed(known) == 20 + 30 + 40 + 4 + 8 + 11
    assert num_computed(unknown) == num_computed(known) + 3 * surplus
    assert unknown.summary["duration"] == unknown.requests["finish_time"].max()
    assert unknown.requests["num_output_tokens"].tolist() == [5, 9, 12]


@pytest.mark.parametrize(("output", "blocks"), [(12, 2), (13, 3), (14, 3)])
def test_a_surplus_token_that_begins_a_block_takes_it(output: int, blocks: int) -> None:
    """Prompt 20 and 13 of output: slot 32 is the surplus token's, and the first of a block."""
    trace = Trace.from_arrays([0.0], [20], [output])
    result = served(trace, "eos", record_block_events=True)
    assert len(result.block_events[result.block_events["kind"] == 0]) == blocks
    known = served(trace, "length", record_block_events=True)
    assert len(known.block_events[known.block_events["kind"] == 0]) == min(
        blocks, 2 + (output > 13)
    )


def test_an_end_that_meets_max_model_len_is_foreseen() -> None:
    trace = Trace.from_arrays([0.0], [500], [200])  # 12 tokens are left
    assert num_computed(served(trace, "eos")) == num_computed(served(trace, "length")) == 511


def test_a_surplus_token_preempts_if_it_must_and_every_token_counts_once() -> None:
    rng = np.random.default_rng(1)
    trace = Trace.from_arrays(np.zeros(12), rng.integers(1, 150, 12), rng.integers(20, 80, 12))
    result = served(trace, "eos", num_gpu_blocks_override=40)
    assert result.summary["num_preemptions"] > 0
    assert result.requests["num_output_tokens"].tolist() == trace.num_output_tokens.tolist()


def test_drafts_behind_the_end_are_dropped_and_the_surplus_step_holds_drafts() -> None:
    spec = '{"method":"mtp","num_speculative_tokens":3}'
    trace = Trace.from_arrays([0.0, 0.0], [33, 33], [1, 9], accepted_drafts=[[3], [3]])
    known = served(trace, "length", speculative_config=spec)
    unknown = served(trace, "eos", speculative_config=spec)
    assert unknown.requests["num_output_tokens"].tolist() == [1, 9]
    # While drafts are in flight, max_tokens is no more certain than EOS: only the first differs.
    assert num_computed(unknown) == num_computed(known) + 1 + 3


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_gpu_blocks_override": 200},
        {"data_parallel_size": 2, "router": "least-outstanding"},
        {"num_prefill_workers": 1, "num_decode_workers": 1},
    ],
)
def test_both_engines_and_runs_of_steps_take_the_surplus_step(options: dict[str, Any]) -> None:
    trace = workloads.sharegpt(num_requests=40, request_rate=4.0, seed=3)
    assert trace.ends_by.tolist() == [1] * 40
    given = {**L4, "max_model_len": 2048, **options}
    one = kvsim.simulate(trace, backend="python", **given)
    other = kvsim.simulate(trace, backend="compiled", **given)
    for table in ("requests", "memory", "steps"):
        assert equal_tables(getattr(one, table), getattr(other, table)), table
    without = dict(given, record_steps=False)  # runs of steps have no rows
    runs = kvsim.simulate(trace, backend="compiled", **without)
    assert equal_tables(runs.requests, one.requests)
    assert equal_tables(runs.memory, one.memory)
    short = kvsim.simulate(trace, backend="python", ends_by="length", **given)
    assert num_computed(one) > num_computed(short)


@pytest.mark.long
def test_requests_that_stay_where_prompts_are_computed_end_as_the_trace_says() -> None:
    trace = Trace.from_arrays(np.arange(8) / 4, [40] * 8, [20] * 8, ends_by="eos")
    options = {"num_prefill_workers": 1, "num_decode_workers": 1, "disaggregation": "splitwise"}
    unknown, known = served(trace, "eos", **options), served(trace, "length", **options)
    assert num_computed(unknown) == num_computed(known) + 8


@pytest.mark.parametrize(
    ("spec", "ends_by"),
    [
        ("sharegpt", 1),
        ("alpaca", 1),
        ("azure-conv", 1),
        ("azure-code", 1),
        ("multi-turn", 1),
        ("fixed", 0),
        ("random", 0),
        ("uniform", 0),
        ("shared-prefix", 0),
    ],
)
def test_chats_and_production_end_by_eos_and_benchmarks_by_length(spec: str, ends_by: int) -> None:
    trace = workloads.generate(spec, num_requests=20, request_rate=1.0, seed=0)
    assert set(trace.ends_by.tolist()) == {ends_by}


def test_lengths_drawn_from_a_file_end_as_they_did_there(tmp_path: Any) -> None:
    path = tmp_path / "t.csv"
    Trace.from_arrays([0.0, 1.0], [3, 4], [5, 6], ends_by=["eos", "length"]).save(path)
    drawn = workloads.empirical(trace=str(path), num_requests=50)
    assert ((drawn.ends_by == 1) == (drawn.num_prompt_tokens == 3)).all()


def test_ends_by_is_a_flag_and_refuses_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["run", "--num-requests", "4", "--model", "llama-3.1-8b", "--gpu", "l4"]
    words += ["--backend", "python", "--max-model-len", "4096"]
    main([*words, "--ends-by", "length", "--json", "-"])
    assert '"completed": 4' in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--ends-by", "stop"])
    assert stopped.value.code == 2
    assert "--ends-by" in capsys.readouterr().err


def test_an_unforeseen_end_leaves_the_digest_of_other_traces_alone() -> None:
    plain = Trace.from_arrays([0.0], [8], [4])
    assert plain.digest == Trace.from_arrays([0.0], [8], [4], ends_by="length").digest
    assert plain.digest != Trace.from_arrays([0.0], [8], [4], ends_by="eos").digest


def test_a_trace_says_what_an_engine_knows_of_an_answer(tmp_path: Path) -> None:
    trace = Trace.from_arrays([0.0, 1.0, 2.0], [5, 5, 5], [4, 4, 4], max_tokens=[0, 4, 9])
    assert trace.ends_by.tolist() == [0, 0, 1]
    assert Contents.of(trace).lists["asked_tokens"].tolist() == [4, 4, 9]
    assert trace.with_ends_by("length").max_tokens.tolist() == [0, 0, 0]
    trace.save(tmp_path / "trace.csv")
    assert workloads.load(tmp_path / "trace.csv").digest == trace.digest
    with pytest.raises(ValueError, match="row 0: max_tokens is 3, must be num_output_tokens to"):
        Trace.from_arrays([0.0], [5], [4], max_tokens=[3])
