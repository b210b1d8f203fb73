"""Parallel samples under vLLM V1: requests of their own, counted one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kvsim
import workloads
from kvsim.results.tables import FinishReason
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace
from kvsim.trace.family import family_of, names_of, num_answer_tokens

H100 = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
#: A pool in which samples preempt each other.
TIGHT = {"model": "llama-3.1-8b", "gpu": "l4", "max_model_len": 512, "num_gpu_blocks_override": 120}
AT_ONCE = float("inf")


def mixed(seed: int = 0, n: int = 20) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace.from_arrays(
        np.sort(rng.uniform(0, 2, n)),
        rng.integers(1, 200, n),
        rng.integers(20, 60, n),
        num_samples=rng.integers(1, 6, n),
        priority=rng.integers(0, 3, n),
        ends_by=[("length", "eos")[k] for k in rng.integers(0, 2, n)],
    )


def python(trace: Trace, **options: Any) -> kvsim.Result:
    return kvsim.simulate(trace, backend="python", **options)


@pytest.mark.long
def test_every_token_of_every_sample_counts_under_vllm() -> None:
    trace = workloads.fixed(prompt=512, output=100, num_requests=30, request_rate=AT_ONCE)
    result = python(trace, num_samples=4, **H100)
    assert (result.provenance["scheduler"], result.provenance["notes"]) == ("vllm", [])
    assert result.summary["total_output_tokens"] == 30 * 4 * 100
    assert result.summary["total_input_tokens"] == 30 * 512
    assert result.summary["completed"] == len(result.requests) == 30
    assert result.summary["peak_running"] == len(result.samples) == 120
    rate = result.summary["output_throughput"] * result.summary["duration"]
    assert rate == pytest.approx(12_000)


def test_v0_counts_every_sample_too() -> None:
    trace = workloads.fixed(prompt=512, output=100, num_requests=30, request_rate=AT_ONCE)
    result = python(trace, num_samples=4, scheduler="vllm-v0", **H100)
    assert result.summary["total_output_tokens"] == 12_000
    assert set(result.requests["num_output_tokens"].tolist()) == {400}
    contiguous = python(trace, num_samples=4, allocator="contiguous-oracle", **H100)
    assert contiguous.summary["total_output_tokens"] == 12_000


@pytest.mark.long
@pytest.mark.parametrize(
    ("prompt", "blocks"), [(50, 3 + 4 * 1), (48, 2 + 4 * 1), (49, 3 + 4 * 1), (16, 4)]
)
def test_samples_share_the_full_blocks_of_a_prompt(prompt: int, blocks: int) -> None:
    """Full blocks up to (prompt - 1) // 16 once, the rest of each sample by itself."""
    trace = Trace.from_arrays([0.0], [prompt], [1], num_samples=[4])
    result = python(trace, record_block_events=True, **H100)
    taken = result.block_events[result.block_events["kind"] == 0]
    assert len(taken) == blocks
    full = (prompt - 1) // 16 * 16
    assert result.samples["num_cached_tokens"].tolist() == [0, full, full, full]


def test_a_row_is_what_a_client_gets_that_waits_for_all_samples() -> None:
    trace = Trace.from_arrays(
        [0.0, 0.0],
        [100, 60],
        [50, 30],
        num_samples=[3, 1],
        sample_output_tokens=[[10, 50, 20], []],
    )
    result = python(trace, **H100)
    own, row = result.samples[:3], result.requests[0]
    assert result.samples["parent_id"].tolist() == [0, 0, 0, 1]
    assert own["num_output_tokens"].tolist() == [10, 50, 20]
    assert row["num_output_tokens"] == 80
    assert row["num_prompt_tokens"] == 100
    assert row["first_token_time"] == own["first_token_time"].min()
    assert row["finish_time"] == own["finish_time"].max() == own["finish_time"][1]
    assert row["num_cached_tokens"] == own["num_cached_tokens"].min()
    assert result.requests[1]["finish_time"] == result.samples[3]["finish_time"]
    gaps = (result.samples["finish_time"] - result.samples["first_token_time"]).sum()
    assert result.summary["mean_itl_ms"] == pytest.approx(1e3 * gaps / (80 + 30 - 4), rel=1e-9)
    hits = result.samples["num_cached_tokens"].sum() / result.samples["num_prompt_tokens"].sum()
    assert result.summary["prefix_cache_hit_rate"] == hits > 0


def test_samples_take_places_of_max_num_seqs_one_by_one() -> None:
    trace = workloads.fixed(prompt=64, output=40, num_requests=2, request_rate=AT_ONCE)
    result = python(trace, num_samples=5, max_num_seqs=3, **H100)
    assert result.summary["peak_running"] == 3
    assert result.summary["completed"] == 2
    waits = result.samples["first_scheduled_time"] - result.samples["arrival_time"]
    assert (waits[3:] > 0).all()
    assert not result.summary["rejections"]


#: Where samples are requests of their own: fleets, orders, stages, memory.
SETTINGS: dict[str, dict[str, Any]] = {
    "preempted": {},
    "by priority": {"scheduling_policy": "priority"},
    "synchronous": {"async_scheduling": False},
    "stages": {"pipeline_parallel_size": 2, "async_scheduling": True},
    "without a cache": {"enable_prefix_caching": False},
    "drafts": {"speculative_config": '{"method":"mtp","num_speculative_tokens":2}'},
    "two replicas": {"data_parallel_size": 2, "router": "vllm-dp"},
    "closed loop": {"max_concurrency": 2},
    "prompts apart": {"num_prefill_workers": 1, "num_decode_workers": 1},
    "offloading": {"kv_offloading_size": 1, "kv_offloading_backend": "native"},
    "contiguous": {"allocator": "contiguous-oracle", "scheduler": "vllm"},
    "virtual": {"allocator": "virtual"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", SETTINGS)
def test_samples_keep_every_invariant_and_every_token(name: str) -> None:
    trace = mixed()
    result = python(trace, check_invariants=True, **{**TIGHT, **SETTINGS[name]})
    check_result(result)
    assert result.summary["total_output_tokens"] == num_answer_tokens(trace).sum()
    assert (result.requests["finish_reason"] == FinishReason.FINISHED).all()
    again = python(trace, **{**TIGHT, **SETTINGS[name]})
    assert equal_tables(result.samples, again.samples)


@pytest.mark.parametrize("name", ["preempted", "by priority", "two replicas", "prompts apart"])
def test_both_engines_serve_samples_alike(name: str) -> None:
    options = {**TIGHT, **SETTINGS[name], "record_steps": True}
    one, other = python(mixed(), **options), kvsim.simulate(mixed(), backend="compiled", **options)
    for table in ("requests", "samples", "memory", "steps"):
        assert equal_tables(getattr(one, table), getattr(other, table)), table


@pytest.mark.long
def test_siblings_are_routed_one_by_one() -> None:
    trace = workloads.fixed(prompt=64, output=40, num_requests=1, request_rate=AT_ONCE)
    result = python(trace, num_samples=4, data_parallel_size=2, router="vllm-dp", **H100)
    assert sorted(result.samples["replica"].tolist()) == [0, 0, 1, 1]
    hits = np.zeros(2, int)
    np.add.at(hits, result.samples["replica"], result.samples["num_cached_tokens"] == 0)
    assert hits.tolist() == [1, 1]  # each rank computes the prompt once


def test_a_place_of_a_closed_loop_is_free_when_the_last_sample_has_ended() -> None:
    trace = Trace.from_arrays(
        [0.0, 0.0], [64, 64], [90, 10], num_samples=[3, 1], sample_output_tokens=[[5, 90, 7], []]
    )
    table = python(trace, max_concurrency=1, **H100).requests
    assert table["arrival_time"][1] == pytest.approx(table["finish_time"][0], rel=1e-12)
    assert table["arrival_time"][1] >= table["finish_time"][0]


def test_a_next_turn_waits_for_the_last_sample_and_names_the_first_ones_answer() -> None:
    trace = Trace.from_arrays(
        [0.0, 0.0],
        [64, 128],
        [32, 8],
        segments=[[(1, 0, 64)], [(1, 0, 64), (7, 0, 32), (2, 0, 32)]],
        output_content_id=[7, 8],
        session_id=[0, 0],
        num_samples=[3, 1],
    )
    result = python(trace, session_think_time=1.0, **H100)
    table = result.requests
    assert table["arrival_time"][1] == pytest.approx(table["finish_time"][0] + 1.0)
    assert table["num_cached_tokens"][1] >= 80  # the prompt, and the first answer's full block


def test_children_are_named_and_ordered_as_vllm_does() -> None:
    family = family_of(Trace.from_arrays([0.0] * 3, [5] * 3, [4] * 3, num_samples=[1, 3, 2]))
    assert list(names_of(family.children)) == ["0", "0_1", "1_1", "2_1", "0_2", "1_2"]
    assert len(set(family.children.output_content_id.tolist())) == 6
    shared = family.children.segment_content_id
    assert shared.tolist()[1] == shared.tolist()[3] != shared.tolist()[4]


def test_children_keep_what_their_parents_have() -> None:
    trace = Trace.from_arrays(
        [0.0, 1.0],
        [8, 9],
        [4, 5],
        segments=[[(3, 0, 8)], [(3, 0, 4), (5, 1, 5)]],
        num_samples=[2, 3],
        accepted_drafts=[[1, 2], []],
        encoder_items=[[(0, 4)], [(4, 2)]],
        cache_salt=["a", None],
        lora_id=[0, 2],
        tenant=["x", "y"],
    )
    family = family_of(trace)
    family.children._validate()
    for row, parent in enumerate([0, 0, 1, 1, 1]):
        assert family.children.segments_of(row) == trace.segments_of(parent)
        assert family.children.tenant_of(row) == trace.tenant_of(parent)
        for name in ("cache_salt", "lora_id", "arrival_time", "num_prompt_tokens"):
            assert getattr(family.children, name)[row] == getattr(trace, name)[parent]
    assert family.children.accept_offsets.tolist() == [0, 2, 4, 4, 4, 4]
    assert family.children.accepted_drafts.tolist() == [1, 2, 1, 2]
    assert family.children.item_start.tolist() == [0, 0, 4, 4, 4]


def test_a_recorded_run_of_samples_replays(tmp_path: Any) -> None:
    trace = replace(mixed(n=8), priority=np.zeros(8, np.int64))
    case = kvsim.record(trace, tmp_path / "case.json", backend="python", **TIGHT)
    assert {one.id for one in case.workload.requests} >= set(names_of(family_of(trace).children))
    assert any(one.stop_at for one in case.workload.requests)
    assert kvsim.replay(tmp_path / "case.json", check_invariants=True) is None


@pytest.mark.long
def test_a_saved_run_has_its_samples_and_the_traces_own_digest(tmp_path: Any) -> None:
    from kvsim.results.result import load

    trace = workloads.fixed(prompt=64, output=10, num_requests=3)
    result = python(trace, num_samples=2, **H100)
    assert result.provenance["trace_digest"] == trace.digest
    result.save(tmp_path / "run")
    again = load(tmp_path / "run")
    assert equal_tables(again.samples, result.samples)
    assert len(load_without(tmp_path, trace).samples) == 0


def load_without(tmp_path: Any, trace: Trace) -> kvsim.Result:
    from kvsim.results.result import load

    python(trace, **H100).save(tmp_path / "plain")
    assert not (tmp_path / "plain" / "samples.parquet").exists()
    return load(tmp_path / "plain")


def test_lengths_of_samples_need_their_number_and_vllm() -> None:
    trace = Trace.from_arrays([0.0], [64], [9], num_samples=[2], sample_output_tokens=[[3, 9]])
    with pytest.raises(ValueError, match="omit num_samples"):
        python(trace, num_samples=4, **H100)
    with pytest.raises(ValueError, match="sample_output_tokens: under scheduler 'vllm-v0'"):
        python(trace, scheduler="vllm-v0", **H100)


def test_lengths_of_samples_and_ends_are_written_and_read(tmp_path: Any) -> None:
    trace = Trace.from_arrays(
        [0.0, 1.0, 2.0],
        [64, 5, 6],
        [9, 8, 7],
        num_samples=[2, 1, 3],
        sample_output_tokens=[[3, 9], [], []],
        ends_by=["eos", "length", None],
    )
    for name in ("t.csv", "t.jsonl", "t.parquet"):
        trace.save(tmp_path / name)
        assert workloads.load(tmp_path / name).digest == trace.digest
    assert trace[1:].ends_by.tolist() == [0, 0]
    assert trace[:1].sample_output_tokens.tolist() == [3, 9]
    assert "ends_by" not in (tmp_path / "t.csv").read_text().split("\n")[2]
