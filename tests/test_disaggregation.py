"""Prompts computed apart from outputs: terms of a TTFT, blocks held and given back."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.cases.record import record_run
from kvsim.cli import main
from kvsim.engine.incoming import IncomingRequest
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.fleet.disaggregation.policy import DISAGGREGATIONS
from kvsim.fleet.disaggregation.transfer_size import num_descriptors, transfer_bytes
from kvsim.fleet.fabric import fabric_of
from kvsim.fleet.routing.router import Router
from kvsim.fleet.simulate import serve as serve_setup
from kvsim.results.tables import FinishReason
from kvsim.testing import check_result, equal_tables
from kvsim.trace import Trace

ROOT = Path(__file__).resolve().parents[1]
ONE_EACH = {"num_prefill_workers": 1, "num_decode_workers": 1}
H100 = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
#: A second a step, and nothing that overlaps.
SECONDS = {**H100, "cost_model": "constant+seconds=1", "async_scheduling": False}
TOKEN = 131_072  # bytes of KV of Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes


@dataclass
class Known:
    """What a rule may ask of a request and both of its replicas."""

    num_prompt_tokens: int
    num_cached_tokens: int = 0
    num_pending_tokens: int = 0
    num_scheduled: int = 0
    num_scheduled_tokens: int = 0
    can_stay: bool = True
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    num_kv_tokens: int = 100_000


def one(prompt: int = 1000, output: int = 20) -> Trace:
    return workloads.fixed(prompt=prompt, output=output, num_requests=1, request_rate=1.0)


@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize(("apart", "cached"), [({}, 1584), (ONE_EACH, 1568)])
def test_beside_a_connector_a_drafter_drops_the_last_block_of_a_hit(
    backend: str, apart: dict[str, int], cached: int
) -> None:
    """Vllm uses lookahead hashes only without a connector: of 99 blocks, the last is dropped."""
    prompt = [[(1, 0, 1600)]] * 2
    trace = Trace.from_arrays([0.0, 9.0], [1600] * 2, [4] * 2, segments=prompt)
    drafter = {"method": "eagle", "num_speculative_tokens": 2}
    options = {**H100, **apart, "speculative_config": drafter, "backend": backend}
    found = kvsim.simulate(trace, **options)
    assert found.requests["num_cached_tokens"].tolist() == [0, cached]


def test_one_request_takes_its_prefill_its_transfer_and_one_step_more() -> None:
    plain = kvsim.simulate(one(), **H100)
    apart = kvsim.simulate(one(), **ONE_EACH, proxy_latency=0.004, **H100)
    row, link = apart.requests[0], fabric_of("400g-ib")
    transfer = link.time(1000 * TOKEN)
    step = plain.summary["mean_tpot_ms"]
    ttft = plain.summary["mean_ttft_ms"] + 4.0 + 1000 * transfer + step
    assert apart.summary["mean_ttft_ms"] == pytest.approx(ttft, rel=2e-4)
    assert row["transfer_time"] == pytest.approx(transfer)
    assert (row["replica"], row["prefill_replica"]) == (0, 1)
    assert apart.summary["kv_transfers"]["bytes"] == 1000 * TOKEN
    assert apart.summary["mean_tpot_ms"] == pytest.approx(step)
    assert row["num_output_tokens"] == 20


def test_steps_show_in_a_ttft_to_the_second() -> None:
    """Prefill ends at 1, KV comes within that instant, its last token is computed until 2."""
    result = kvsim.simulate(one(100, 3), **ONE_EACH, **SECONDS)
    row = result.requests[0]
    start = row["arrival_time"]
    assert row["first_token_time"] - start == pytest.approx(2.0, abs=1e-3)
    assert row["finish_time"] - start == pytest.approx(4.0, abs=1e-3)


@pytest.mark.long
def test_a_first_token_may_come_from_the_prefill_replica() -> None:
    """The same run; its prompt is computed at 1, and what follows counts in TPOT."""
    usual = kvsim.simulate(one(100, 3), **ONE_EACH, **SECONDS)
    for backend in ("python", "compiled"):
        options = {**ONE_EACH, **SECONDS, "backend": backend}
        result = kvsim.simulate(one(100, 3), first_token_from="prefill", **options)
        row = result.requests[0]
        assert row["first_token_time"] - row["arrival_time"] == pytest.approx(1.0, abs=1e-3)
        assert row["finish_time"] == usual.requests[0]["finish_time"]
        assert result.summary["mean_ttft_ms"] == pytest.approx(1000, abs=1)
        assert result.summary["mean_tpot_ms"] == pytest.approx(1500, abs=1)


@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_who_is_cut_off_shows_what_became_of_its_prompt(backend: str) -> None:
    """One has got its first token, at 2; the other one's prompt is under way from 1 on."""
    trace = Trace.from_arrays([0, 0.5], [100, 100], [3, 3])
    rows = kvsim.simulate(trace, **ONE_EACH, **SECONDS, horizon=1.5, backend=backend).requests
    assert rows["arrival_time"].tolist() == [0, 0.5]
    assert rows["first_scheduled_time"].tolist() == [0, 1]
    assert rows["num_cached_tokens"].tolist() == [0, 0]
    assert rows["num_output_tokens"].tolist() == [1, 0]


def test_only_of_prompts_that_are_computed_apart() -> None:
    with pytest.raises(ValueError, match="first_token_from: needs disaggregated prefill"):
        kvsim.simulate(one(), first_token_from="prefill", **H100)
    near = {"first_token_from": "prefill", "disaggregation": "llm-d+tokens=1000"}
    trace = Trace.from_arrays([0.0, 5.0], [2000, 100], [3, 3])
    usual = kvsim.simulate(trace, **ONE_EACH, **SECONDS, disaggregation="llm-d+tokens=1000")
    early = kvsim.simulate(trace, **ONE_EACH, **SECONDS, **near)
    sooner = usual.requests["first_token_time"] - early.requests["first_token_time"]
    assert sooner == pytest.approx([1.0, 0.0], abs=0.2)


def test_a_busy_decode_replica_asks_and_takes_in_between_its_steps() -> None:
    """The second prompt is computed from 1 to 2; its KV, 6.5 MB, takes 12 ms.

    Steps of the decode replica begin at 1.024 and whole seconds later. Pulled, it is asked for at
    2.024 and taken in at 3.024. Pushed, there are blocks since 0.5: it comes at 2.012 and is taken
    in at 2.024.
    """
    trace = Trace.from_arrays([0.0, 0.5], [100, 50], [10, 3])
    options = {**SECONDS, "kv_transfer_fabric": "tcp-ucx", **ONE_EACH}
    for protocol, first_token in (("pull", 4.024), ("push", 3.024)):
        rows = kvsim.simulate(trace, kv_transfer_protocol=protocol, **options).requests
        assert rows["first_token_time"] == pytest.approx([2.024, first_token], abs=2e-3)


def test_what_the_decode_replica_holds_is_not_read_again() -> None:
    """A second turn repeats the first one's 1,600 tokens, whose blocks are where it is decoded."""
    trace = Trace.from_arrays(
        [0.0, 5.0],
        [1600, 2000],
        [4, 4],
        segments=[[(1, 0, 1600)], [(1, 0, 1600), (2, 0, 400)]],
    )
    result = kvsim.simulate(trace, **ONE_EACH, **H100)
    assert result.summary["kv_transfers"]["bytes"] == (1600 + 400) * TOKEN
    assert result.requests["num_cached_tokens"].tolist() == [0, 1600]  # at the prefill replica
    rates = {p["role"]: p["external_prefix_cache_hit_rate"] for p in result.summary["pools"]}
    assert rates == {"prefill": 0.0, "decode": 1.0}  # of 2,000 tokens asked for in either
    assert result.summary["external_prefix_cache_hit_rate"] == 0.5


def test_few_missing_tokens_are_computed_where_they_are_missed() -> None:
    trace = Trace.from_arrays(
        [0.0, 5.0],
        [1600, 2000],
        [4, 4],
        segments=[[(1, 0, 1600)], [(1, 0, 1600), (2, 0, 400)]],
    )
    for threshold, transfers in ((400, 2), (401, 1)):
        result = kvsim.simulate(trace, **ONE_EACH, **H100, kv_recompute_threshold=threshold)
        assert result.summary["kv_transfers"]["num_transfers"] == transfers
        assert result.summary["completed"] == 2
    for rule, transfers in (
        ("llm-d+tokens=400", 2),
        ("llm-d+tokens=401", 1),
        ("dynamo", 1),
        ("llm-d+tokens=0", 0),
    ):
        result = kvsim.simulate(trace, **ONE_EACH, **H100, disaggregation=rule)
        assert (result.requests["prefill_replica"] >= 0).sum() == transfers


@pytest.mark.parametrize(
    ("rule", "prompt", "cached", "apart"),
    [
        ("always", 10, 10, True),
        ("llm-d", 100, 85, False),
        ("llm-d", 100, 84, True),
        ("dynamo", 2047, 0, True),  # few, but all of it
        ("dynamo", 2047, 700, False),
        ("dynamo", 10_000, 7_952, True),  # a small share, but 2,048
        ("dynamo", 10_000, 7_953, False),
    ],
)
def test_rules_of_disaggregation(rule: str, prompt: int, cached: int, apart: bool) -> None:
    request = Known(prompt, num_cached_tokens=cached)
    assert DISAGGREGATIONS.make(rule).place(request) == ("apart" if apart else "decode")


@pytest.mark.parametrize(
    ("rule", "known", "place"),
    [
        # Every prefill replica has more than 16 full steps in hand, or one has no more.
        ("dynamo+prefill-busy=16", {"num_pending_tokens": 32_769}, "decode"),
        ("dynamo+prefill-busy=16", {"num_pending_tokens": 32_768}, "apart"),
        # A decode replica that is busy gets no prompt to compute.
        ("dynamo+decode-busy=0.5", {"num_cached_tokens": 9_990}, "decode"),
        (
            "dynamo+decode-busy=0.5",
            {"num_cached_tokens": 9_990, "num_scheduled_tokens": 50_000},
            "decode",
        ),
        (
            "dynamo+decode-busy=0.5",
            {"num_cached_tokens": 9_990, "num_scheduled_tokens": 50_001},
            "apart",
        ),
        # A queue alone is not too long, however long the prompt; nor is a short one.
        ("splitwise", {}, "apart"),
        ("splitwise", {"num_pending_tokens": 1}, "decode"),
        ("splitwise+tokens=10001", {"num_pending_tokens": 1}, "apart"),
        ("splitwise+tokens=10000", {"num_pending_tokens": 1}, "decode"),
        # 10,000 and what is there fill the decode replica, or one token more.
        ("splitwise", {"num_scheduled_tokens": 90_000}, "apart"),
        ("splitwise", {"num_scheduled_tokens": 90_001}, "prefill"),
        ("splitwise", {"num_scheduled": 255}, "apart"),
        ("splitwise", {"num_scheduled": 256}, "prefill"),
        ("splitwise", {"num_scheduled_tokens": 90_001, "can_stay": False}, "apart"),
        ("splitwise", {"num_scheduled_tokens": 90_001, "num_pending_tokens": 1}, "decode"),
    ],
)
def test_rules_that_look_at_both_pools(rule: str, known: dict[str, Any], place: str) -> None:
    """A prompt of 10,000; steps of 2,048 tokens there, 100,000 slots here."""
    assert DISAGGREGATIONS.make(rule).place(Known(10_000, **known)) == place


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_a_long_queue_of_prompts_lends_a_decode_replica(backend: str) -> None:
    """8,000 are in hand: 500 more are too many, 100 more are not."""
    trace = Trace.from_arrays([0, 0.1, 0.2], [8000, 500, 100], [4, 4, 4])
    options = {**ONE_EACH, **SECONDS, "max_num_batched_tokens": 8192, "backend": backend}
    result = kvsim.simulate(trace, disaggregation="splitwise", check_invariants=True, **options)
    rows = result.requests
    assert rows["prefill_replica"].tolist() == [1, -1, 1]
    assert rows["first_token_time"] == pytest.approx([3.1, 1.1, 4.1])
    assert result.summary["kv_transfers"]["num_transfers"] == 2


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_who_finds_no_room_to_decode_stays_where_its_prompt_is_computed(backend: str) -> None:
    """75 blocks: 800 and 500 tokens are too many, 800 and 300 are not, once 500 have stayed."""
    trace = Trace.from_arrays([0, 5, 6], [800, 500, 300], [10, 4, 4])
    options = {**ONE_EACH, **SECONDS, "num_gpu_blocks_override": 75, "backend": backend}
    options |= {"disaggregation": "splitwise", "check_invariants": True}
    result = kvsim.simulate(trace, **options)
    rows = result.requests
    assert rows["replica"].tolist() == [0, 1, 0]
    assert rows["prefill_replica"].tolist() == [1, -1, 1]
    assert rows["num_output_tokens"].tolist() == [10, 4, 4]
    assert rows["first_token_time"][1] == 6.0
    assert rows["finish_time"][1] == 9.0
    replicas = [(one["num_requests"], one["completed"]) for one in result.summary["replicas"]]
    assert replicas == [(2, 2), (3, 3)]
    assert result.summary["kv_transfers"]["num_transfers"] == 2
    early = kvsim.simulate(trace, horizon=7.5, **options).requests[1]
    assert (early["replica"], early["num_output_tokens"]) == (1, 3)
    assert early["finish_reason"] == FinishReason.IN_FLIGHT


@pytest.mark.parametrize(("longest", "prefill_replica"), [(503, 1), (504, -1)])
def test_nobody_stays_where_his_output_would_be_cut(longest: int, prefill_replica: int) -> None:
    """400 and 500 tokens are too many for 56 blocks; 500 and 4 more need a context of 504."""
    trace = Trace.from_arrays([0, 5], [400, 500], [10, 4])
    pools = [
        {"role": "prefill", "replicas": 1, "max_model_len": longest},
        {"role": "decode", "replicas": 1, "max_model_len": 890},
    ]
    options = {**SECONDS, "num_gpu_blocks_override": 56, "disaggregation": "splitwise"}
    rows = kvsim.simulate(trace, pool=pools, **options).requests
    assert rows["prefill_replica"].tolist() == [1, prefill_replica]
    assert rows["num_output_tokens"].tolist() == [10, 4]


def test_bytes_of_a_transfer_are_those_of_all_ranks() -> None:
    """Heads are replicated above their number; a latent goes once; windows end a layer's share."""
    for tp, factor in ((1, 1), (8, 1), (16, 2)):
        setup = resolve(
            kvsim.Config.build(**H100, tensor_parallel_size=tp, kv_cache_memory_bytes=10**9)
        )
        assert transfer_bytes(setup, 1000) == 1000 * TOKEN * factor
    mla = resolve(
        kvsim.Config.build(model="deepseek-v2-lite", gpu="h100-sxm", tensor_parallel_size=2)
    )
    assert transfer_bytes(mla, 1000) == 1000 * 27 * 576 * 2
    windows = resolve(
        kvsim.Config.build(model="gemma-3-27b", gpu="h100-sxm", tensor_parallel_size=2)
    )
    assert transfer_bytes(windows, 5000) == 8192 * (10 * 5000 + 52 * 1024)
    setup = resolve(kvsim.Config.build(**H100))
    assert num_descriptors(setup, 100) == 7 * 32 * 2


def test_a_prefill_pool_shrinks_while_a_slow_link_reads_it() -> None:
    """With room for two prompts, the third one waits until the first one has been read."""
    trace = Trace.from_arrays([0.0, 0.0, 0.0], [160, 160, 160], [2, 2, 2])
    rows = {}
    for fabric in ("tcp-ucx", "400g-ib"):
        result = kvsim.simulate(
            trace,
            **ONE_EACH,
            **{**SECONDS, "cost_model": "constant+seconds=0.001"},
            kv_transfer_fabric=fabric,
            num_gpu_blocks_override=24,
            max_model_len=200,
            enable_prefix_caching=False,
            check_invariants=True,
        )
        assert result.summary["completed"] == 3
        rows[fabric] = result.requests
    # 21 MB take 38 ms over TCP, two at a time 76.
    assert rows["400g-ib"]["first_scheduled_time"][2] < 0.01
    assert rows["tcp-ucx"]["first_scheduled_time"][2] > 0.07


def test_who_has_loaded_goes_on_when_the_only_one_who_ran_preempts_itself() -> None:
    """At 14 s the first one's 113th token needs an eighth block: seven, and four loaded, are all.

    It preempts itself, which lets nobody in; the step after that does.
    """
    trace = Trace.from_arrays([0.0, 11.5], [100, 50], [20, 4])
    options = {**SECONDS, **ONE_EACH, "num_gpu_blocks_override": 12, "max_model_len": 150}
    for backend in ("python", "compiled"):
        rows = kvsim.simulate(trace, **options, backend=backend).requests
        assert rows["finish_reason"].tolist() == [0, 0]
        assert rows["num_preemptions"].tolist() == [1, 0]
        assert rows["finish_time"] == pytest.approx([25.0, 18.0], abs=1e-3)


@pytest.mark.long
@examples(60)
@given(trace=traces(max_requests=30), data=st.data())
def test_every_request_ends_once_and_both_engines_agree(trace: Trace, data: st.DataObject) -> None:
    draw = data.draw
    options: dict[str, Any] = {
        **H100,
        "num_prefill_workers": draw(st.integers(1, 3)),
        "num_decode_workers": draw(st.integers(1, 3)),
        "num_gpu_blocks_override": draw(st.integers(8, 60)),
        "max_model_len": draw(st.sampled_from([60, 200, 500])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([16, 64, 512])),
        "async_scheduling": draw(st.booleans()),
        "router": draw(st.sampled_from(["round-robin", "least-outstanding", "vllm-dp", "dynamo"])),
        "kv_transfer_protocol": draw(st.sampled_from(["pull", "push"])),
        "kv_transfer_fabric": draw(st.sampled_from(["tcp-ucx", "nixl-vllm", "400g-ib"])),
        "disaggregation": draw(st.sampled_from(["always", "llm-d", "dynamo"])),
        "kv_recompute_threshold": draw(st.sampled_from([0, 20])),
        "proxy_latency": draw(st.sampled_from([0.0, 0.01])),
        "max_concurrency": draw(st.sampled_from([None, 3])),
        "session_think_time": draw(st.sampled_from([None, 0.0, 0.5])),
        "horizon": draw(st.sampled_from([float("inf"), 0.5])),
    }
    trace = trace.with_num_samples(1)
    replicas: list[Replica] = []
    setup = resolve(kvsim.Config.build(**options, backend="python", check_invariants=True))
    python = serve_setup(setup, trace, on_start=replicas.append)
    compiled = kvsim.simulate(trace, **options, backend="compiled")
    assert equal_tables(python.requests, compiled.requests)
    assert equal_tables(python.memory, compiled.memory)
    assert python.summary == compiled.summary
    reasons = set(python.requests["finish_reason"].tolist())
    if options["horizon"] == float("inf"):
        assert reasons <= {FinishReason.FINISHED, FinishReason.REJECTED}
        for replica in replicas:
            assert replica.state.connector.num_pinned == 0
            assert replica.state.connector.waiting_for_kv.length == 0
            assert replica.state.kv.num_held == 0
        apart = python.requests["prefill_replica"] >= 0
        assert python.summary["kv_transfers"]["num_transfers"] <= apart.sum()
        done = python.requests["finish_reason"] == FinishReason.FINISHED
        expected = trace.num_output_tokens
        longest = options["max_model_len"] - trace.num_prompt_tokens
        got = python.requests["num_output_tokens"]
        assert np.array_equal(got[done], np.minimum(expected, longest)[done])


@pytest.mark.long
@pytest.mark.parametrize("concurrency", [None, 6])
@pytest.mark.parametrize("router", ["round-robin", "vllm-dp", "llm-d+index=precise", "dynamo"])
def test_clients_who_could_wait_change_nothing_where_nobody_does(
    router: str, concurrency: int | None
) -> None:
    trace = workloads.sharegpt(num_requests=60, request_rate=30, seed=1)
    options = {**H100, "router": router, "max_concurrency": concurrency, "data_parallel_size": 3}
    plain = kvsim.simulate(trace, **options)
    coupled = kvsim.simulate(trace, session_think_time=0.0, **options)
    assert equal_tables(plain.requests, coupled.requests)
    assert plain.summary == coupled.summary


@pytest.mark.long
def test_a_later_turn_waits_for_the_answer_and_for_the_reader() -> None:
    trace = Trace.from_arrays(
        [0.0, 1.0, 1.0, 100.0], [8, 8, 8, 8], [5, 5, 2, 5], session_id=[7, 7, -1, 7]
    )
    rows = kvsim.simulate(trace, **SECONDS, session_think_time=2.0).requests
    assert rows["finish_time"].tolist() == [5.0, 12.0, 3.0, 105.0]
    assert rows["arrival_time"].tolist() == pytest.approx([0.0, 7.0, 1.0, 100.0])
    plain = kvsim.simulate(trace, **SECONDS)
    assert plain.requests["arrival_time"].tolist() == [0.0, 1.0, 1.0, 100.0]
    assert (plain.summary["num_early_turns"], plain.summary["num_later_turns"]) == (1, 2)


@pytest.mark.long
def test_a_session_goes_on_after_a_turn_that_nobody_serves() -> None:
    trace = Trace.from_arrays([0.0, 1.0, 2.0], [8, 900, 8], [2, 2, 2], session_id=[7, 7, 7])
    options = {**SECONDS, "max_model_len": 100, "session_think_time": 0.0}
    rows = kvsim.simulate(trace, **options).requests
    assert rows["finish_reason"].tolist() == [0, FinishReason.REJECTED, 0]
    assert rows["finish_time"][2] == pytest.approx(4.0)


def test_a_prompt_that_the_prefill_pool_cannot_hold_is_rejected() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [400, 50], [5, 5])
    small = {"role": "prefill", "num_gpu_blocks_override": 10, "max_model_len": 160}
    result = kvsim.simulate(
        trace, model="llama-3.1-8b", gpu="h100-sxm", pool=[small, {"role": "decode"}]
    )
    assert result.requests["finish_reason"].tolist() == [FinishReason.REJECTED, 0]
    assert result.summary["num_rejected"] == 1


def test_pools_have_options_of_their_own(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        'model = "llama-3.1-8b"\ngpu = "h100-sxm"\n'
        '[[pool]]\nrole = "prefill"\nreplicas = 2\ntensor_parallel_size = 2\n'
        '[[pool]]\nname = "writers"\nrole = "decode"\nreplicas = 1\ngpu = "a100-80gb"\n'
        'router = "least-outstanding"\n'
    )
    config = kvsim.Config.from_toml(fleet)
    again = tmp_path / "again.toml"
    again.write_text(config.to_toml())
    assert kvsim.Config.from_toml(again) == config
    from kvsim.fleet.simulate import run

    result = run(config, one())
    pools = result.summary["pools"]
    assert [pool["name"] for pool in pools] == ["writers", "prefill"]
    assert [pool["num_gpus"] for pool in pools] == [1, 4]
    assert result.summary["num_gpus"] == 5
    assert [row["role"] for row in result.summary["replicas"]] == ["decode", "prefill", "prefill"]
    assert result.config == config


@pytest.mark.parametrize("replica", [0, 1])
def test_lost_bytes_of_either_pool_are_found(replica: int) -> None:
    """Each pool's bytes by cause sum to its own memory, which they do not share."""
    small = {"role": "prefill", "num_gpu_blocks_override": 100}
    options: dict[str, Any] = {"model": "llama-3.1-8b", "gpu": "h100-sxm"}
    result = kvsim.simulate(one(), **options, pool=[small, {"role": "decode"}])
    check_result(result)
    last = np.flatnonzero(result.memory["replica"] == replica)[-1]
    memory = result.memory.copy()
    memory["free"][last] += 1
    with pytest.raises(AssertionError, match="invariant 9: bytes by cause do not sum"):
        check_result(replace(result, memory=memory))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_prefill_workers": 1}, "give both"),
        ({**ONE_EACH, "data_parallel_size": 2}, "data_parallel_size: conflicts with"),
        ({**ONE_EACH, "allocator": "contiguous-max"}, "cannot transfer KV"),
        ({**ONE_EACH, "kv_transfer_fabric": "string"}, "unknown fabric 'string'"),
        ({**ONE_EACH, "disaggregation": "sometimes"}, "unknown disaggregation 'sometimes'"),
        ({**ONE_EACH, "kv_offloading_size": 4}, "cannot transfer KV"),
        ({**ONE_EACH, "model": "nemotron-h-8b"}, "only the KV of these two is transferred"),
        ({"pool": [{"role": "cook"}]}, "unknown role 'cook'"),
        (
            {"pool": [{"role": "decode", "name": "a"}, {"role": "prefill", "name": "a"}]},
            "two have the name 'a'",
        ),
        (
            {"pool": [{"role": "decode"}, {"role": "prefill"}], "prefill_router": "random"},
            "prefill_router: conflicts with pool",
        ),
        ({"pool": [{"role": "decode"}]}, "must have mixed, or prefill and decode"),
        ({"pool": [{"role": "mixed", "replicas": 0}]}, "at least 1"),
        ({"pool": [{"role": "mixed", "gpus": "a100"}]}, "unknown option of pool 'mixed' 'gpus'"),
        ({"pool": [{"role": "mixed", "gpu": "b52"}]}, "pool 'mixed': unknown GPU 'b52'"),
        ({"pool": 3}, "must be tables"),
        ({"prefill_router": "foo"}, "unknown router 'foo'"),
        (
            {"pool": [{"role": "mixed", "max-num-seqs": 8, "max_num_seqs": 9}]},
            "max_num_seqs: is there twice",
        ),
        (
            {"pool": [{"role": "prefill", "block_size": 32}, {"role": "decode"}]},
            "block_size is 32 in prefill replicas and 16",
        ),
    ],
)
def test_a_wrong_fleet_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as error:
        kvsim.simulate(one(), **{**H100, **options})
    assert "\n" not in str(error.value)


@pytest.mark.long
@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "examples").glob("*.toml")), ids=str)
def test_the_shipped_fleets_run(path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    main(["run", "--config", str(path), "--num-requests", "30", "--out", str(out)])
    assert (out / "fleet.png").stat().st_size > 10_000
    assert (out / "requests.parquet").exists()


@pytest.mark.parametrize(
    "options", [ONE_EACH, {"autoscaler": "hpa"}, {"failures": "at"}, {"pool": [{"role": "mixed"}]}]
)
def test_a_fleet_is_no_case(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a case is one replica's schedule"):
        record_run(kvsim.Config.build(**H100, **options), one(), tmp_path / "case.json")


def test_the_command_line_serves_a_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--num-requests", "5", "--num-prefill-workers", "1", "--num-decode-workers", "2"])
    assert "prefill" in capsys.readouterr().out


class Counts(Router):
    """Takes the first replica, and remembers how many requests it believes to be there."""

    watches_requests = True
    seen: ClassVar[list[int]] = []

    def choose(self, request: IncomingRequest, replicas: Any) -> int:
        del request
        self.seen.append(replicas[0].num_outstanding())
        return 0


@pytest.mark.long
def test_who_is_turned_away_by_the_prefill_router_is_not_at_a_decode_replica() -> None:
    """Two prefill replicas: the third prompt, and those after it, would come too late."""
    trace = Trace.from_arrays(np.arange(6) / 1000, [4000] * 6, [50] * 6)
    Counts.seen.clear()
    result = kvsim.simulate(
        trace,
        **H100,
        num_prefill_workers=2,
        num_decode_workers=2,
        router=f"{__name__}:Counts",
        prefill_router="conductor+ttft-slo=0.12",
    )
    assert result.summary["rejections"] == {"turned away by router conductor": 4}
    assert Counts.seen == [0, 1, 2, 2, 2, 2]


@pytest.mark.long
@pytest.mark.parametrize(("delay", "apart"), [(0.001, 0), (50.0, 1)])
def test_where_a_prompt_is_computed_is_decided_by_what_the_router_believes(
    delay: float, apart: int
) -> None:
    """The second request is the first one again, which its decode replica has; it may be told."""
    prompt = [(1, 0, 1600)]
    trace = Trace.from_arrays([0.0, 20.0], [1600, 1600], [4, 4], segments=[prompt, prompt])
    result = kvsim.simulate(
        trace,
        **H100,
        num_prefill_workers=1,
        num_decode_workers=2,
        router=f"llm-d+index=precise+event-delay={delay}",
        disaggregation="llm-d",
    )
    assert (result.requests["prefill_replica"] >= 0).tolist() == [True, bool(apart)]
