"""Requests that move while they run: who, where to, and what shows of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
import workloads
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.fleet.migration.policy import MIGRATIONS, Candidate, Fullness
from kvsim.fleet.routing.router import ROUTERS, Router
from kvsim.fleet.simulate import serve as serve_setup
from kvsim.report.fleet import fleet_lines
from kvsim.results.tables import FinishReason
from kvsim.testing import equal_tables
from kvsim.trace import Trace

SECONDS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1",
    "async_scheduling": False,
}
#: Two replicas of 21 blocks; the first one gets two that will need 26 between them.
FULL: dict[str, Any] = {
    **SECONDS,
    "data_parallel_size": 2,
    "router": "round-robin",
    "num_gpu_blocks_override": 22,
    "max_model_len": 330,
}
CROWDED = Trace.from_arrays([0.0] * 4, [100, 10, 80, 10], [100, 3, 100, 3])
TOKEN = 131_072  # bytes of KV of Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes


def test_routers_count_a_request_where_they_sent_it() -> None:
    """Two of the first replica's requests go to the second; the router does not see it."""
    seen: list[list[int]] = []

    class Curious(Router):
        watches_requests = looks_at_replicas = True

        def choose(self, request: Any, replicas: Any) -> int:
            seen.append([replica.num_outstanding() for replica in replicas])
            assert seen[-1] == [replica.local.num_requests for replica in replicas]
            return request.request_id % 2

    late = Trace.from_arrays([0.0] * 4 + [90.0], [100, 10, 80, 10, 8], [100, 3, 100, 3, 2])
    with ROUTERS.lend(Curious) as name:
        result = kvsim.simulate(late, **{**FULL, "router": name}, migration="llumnix")
    assert result.summary["migration"]["num_moves"] > 0
    assert seen[-1] == [2, 0]


def test_the_fullest_give_to_the_freest() -> None:
    llumnix = MIGRATIONS.make("llumnix")
    full, half, free = Fullness(4, 0, 4), Fullness(20, 2, 4), Fullness(60, 0, 4)
    assert [one.freeness for one in (full, half, free)] == [1.0, 4.5, 15.0]
    assert llumnix.pairs([half, full, free]) == [(1, 2)]
    assert llumnix.pairs([full, free, Fullness(2, 0, 4), half]) == [(2, 1), (0, 3)]
    assert llumnix.pairs([full, full]) == []
    assert llumnix.pairs([free, half]) == []
    leaving = free._replace(is_leaving=True)
    assert llumnix.pairs([full, leaving, half]) == [(1, 2)]  # before all others
    assert MIGRATIONS.make("llumnix+threshold=5").pairs([half, free]) == [(0, 1)]


def test_a_request_moves_where_that_brings_two_replicas_closer() -> None:
    llumnix = MIGRATIONS.make("llumnix")
    full, free = Fullness(4, 0, 4), Fullness(60, 0, 4)
    assert llumnix.pays(full, free, 8)  # 12/3 and 52/5
    assert not llumnix.pays(full, free, 40)  # 44/3 and 20/5: the other way round
    assert not llumnix.pays(Fullness(0, 0, 1), Fullness(3, 0, 1), 4)
    leaving = full._replace(is_leaving=True)
    assert llumnix.pays(leaving, free, 60)
    assert not llumnix.pays(leaving, free, 61)


def test_the_shortest_moves_unless_told() -> None:
    here = [Candidate(3, 50), Candidate(1, 70), Candidate(2, 20), Candidate(4, 20)]
    picked = {name: MIGRATIONS.make(f"llumnix+victim={name}").pick(here).row for name in VICTIMS}
    assert picked == VICTIMS
    assert MIGRATIONS.make("llumnix").pick(here).row == 2


VICTIMS = {"shortest": 2, "longest": 1, "first": 1}


@pytest.mark.long
def test_a_move_spares_a_preemption_and_costs_one_gap() -> None:
    """Without it the third one is preempted at 77 s, and ends 23 s late."""
    rows = kvsim.simulate(CROWDED, **FULL).requests
    assert rows["num_preemptions"].tolist() == [0, 0, 1, 0]
    assert rows["finish_time"].tolist() == [100.0, 3.0, 123.0, 3.0]
    for backend in ("python", "compiled"):
        result = kvsim.simulate(CROWDED, **FULL, migration="llumnix", backend=backend)
        rows, told = result.requests, result.summary["migration"]
        assert rows["num_preemptions"].tolist() == [0] * 4
        assert rows["replica"].tolist() == [0, 1, 1, 1]
        assert rows["first_token_time"].tolist() == [1.0] * 4
        assert rows["num_output_tokens"].tolist() == [100, 3, 100, 3]
        # The step under way is lost, 50 ms of it had passed.
        assert rows["finish_time"] == pytest.approx([100.0, 3.0, 100.05, 3.0], abs=1e-3)
        assert (told["num_moves"], told["num_refused"]) == (1, 0)
        gaps = result.token_gaps
        assert gaps["count"].sum() == (rows["num_output_tokens"] - 1).sum()
        assert gaps["count"][gaps["gap"] > 1.01].tolist() == [1]
        assert "1 running requests moved" in " ".join(fleet_lines(result.summary))


@pytest.mark.long
def test_what_was_copied_before_does_not_stop_a_request() -> None:
    """Only what is behind the full blocks that are there is copied while it stands still."""
    times = {}
    for blocks in (0, 16):
        told = kvsim.simulate(
            CROWDED, **FULL, migration=f"llumnix+last-blocks={blocks}", kv_transfer_fabric="tcp-ucx"
        ).summary["migration"]
        times[blocks] = told["mean_downtime_ms"]
        assert told["bytes"] % TOKEN == 0
    tokens = [1e-3 * ms * 0.55e9 / TOKEN for ms in times.values()]
    assert all(0 <= number <= 32 for number in tokens)


@pytest.mark.long
def test_no_request_moves_where_there_is_room() -> None:
    trace = workloads.sharegpt(num_requests=100, request_rate=4.0, seed=0)
    options = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "data_parallel_size": 4}
    still = kvsim.simulate(trace, **options, router="least-kv")
    moving = kvsim.simulate(trace, **options, router="least-kv", migration="llumnix")
    assert moving.summary["migration"]["num_moves"] == 0
    assert equal_tables(still.requests, moving.requests)


def heavy_tailed(number: int, rate: float) -> Trace:
    """Lengths by a power law from 32 tokens on, as in Llumnix's traces."""
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(1 / rate, number))
    lengths = np.clip(32 * (1 - rng.random((2, number))) ** (-1 / 1.1), 8, 4000).astype(int)
    return Trace.from_arrays(times.tolist(), *lengths.tolist())


@pytest.mark.slow
def test_long_tails_gain_three_times_and_low_load_nothing() -> None:
    """Llumnix: up to 15 times of P99 TTFT for LLaMA-7B on A10s (OSDI'24, section 6.3)."""
    options: dict[str, Any] = {
        "model": "llama-2-7b",
        "gpu": "a10g",
        "data_parallel_size": 8,
        "router": "round-robin",
        "enable_prefix_caching": False,
    }
    for number, rate in ((4000, 20.0), (1000, 5.0)):
        trace, tails = heavy_tailed(number, rate), []
        for migration in (None, "llumnix"):
            result = kvsim.simulate(trace, **options, migration=migration)
            tails.append(result.summary["p99_ttft_ms"])
        moves = result.summary["migration"]["num_moves"]
        if rate > 10:
            assert tails[0] > 3 * tails[1]
            assert moves > 100
        else:
            assert tails[0] == tails[1]
            assert moves == 0


def test_a_replica_that_drains_is_left_by_its_requests() -> None:
    """Two replicas, one of which the autoscaler takes at 5 s: its request need not end there."""
    trace = Trace.from_arrays([0.0, 0.0], [40, 40], [60, 60])
    options = {**SECONDS, "data_parallel_size": 2, "router": "round-robin"}
    scaler = "hpa+target=5+interval=5+window=0"
    stays = kvsim.simulate(trace, **options, autoscaler=scaler).summary["replicas"]
    leaves = kvsim.simulate(trace, **options, autoscaler=scaler, migration="llumnix")
    assert [row["lifetime"] for row in stays] == [60.0, 60.0]
    lives = [row["lifetime"] for row in leaves.summary["replicas"]]
    assert lives[1] < 7
    assert leaves.requests["replica"].tolist() == [0, 0]
    assert leaves.summary["completed"] == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"migration": "often"}, "unknown migration 'often'"),
        ({"migration": "llumnix+victim=best"}, "victim"),
        ({"failures": "at"}, "migration: not modelled with failures"),
        ({"kv_store": "peer"}, "migration: not modelled with kv_store"),
        ({"scheduler": "orca", "allocator": "paged"}, "migration: scheduler 'orca'"),
        (
            {"data_parallel_size": 1, "num_prefill_workers": 1, "num_decode_workers": 1},
            "migration: not modelled with num_prefill_workers",
        ),
    ],
)
def test_a_wrong_migration_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    given_ = {k: v for k, v in FULL.items() if k != "async_scheduling"}
    with pytest.raises(ValueError, match=said):
        kvsim.simulate(CROWDED, **(given_ | {"migration": "llumnix"} | options))


@pytest.mark.long
@examples(100)
@given(trace=traces(max_requests=30), data=st.data())
def test_every_request_ends_once_wherever_it_moves(trace: Trace, data: st.DataObject) -> None:
    draw = data.draw
    policy = draw(
        st.sampled_from(
            ["", "+threshold=10", "+threshold=10+victim=longest", "+threshold=20+last-blocks=0"]
        )
    )
    options: dict[str, Any] = {
        **SECONDS,
        "cost_model": "constant+seconds=0.02",
        "data_parallel_size": draw(st.integers(2, 3)),
        "num_gpu_blocks_override": draw(st.integers(10, 60)),
        "max_model_len": draw(st.sampled_from([60, 150])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([16, 64, 512])),
        "async_scheduling": draw(st.booleans()),
        "enable_prefix_caching": draw(st.booleans()),
        "router": draw(st.sampled_from(["round-robin", "vllm-dp", "dynamo", "least-kv"])),
        "max_concurrency": draw(st.sampled_from([None, 5])),
        "kv_transfer_fabric": draw(st.sampled_from(["tcp-ucx", "400g-ib"])),
        "migration": f"llumnix{policy}+interval={draw(st.sampled_from([0.01, 0.05]))}",
        "autoscaler": draw(st.sampled_from([None, "hpa+target=1+max=4+interval=0.2"])),
        "cold_start": 0.1,
    }
    trace = trace.with_num_samples(1)
    replicas: list[Replica] = []
    setup = resolve(kvsim.Config.build(**options, backend="python", check_invariants=True))
    python = serve_setup(setup, trace, on_start=replicas.append)
    compiled = kvsim.simulate(trace, **options, backend="compiled")
    assert equal_tables(python.requests, compiled.requests)
    assert equal_tables(python.memory, compiled.memory)
    assert python.summary == compiled.summary
    for replica in replicas:
        state = replica.state
        assert (
            state.num_outstanding == state.kv.num_held == state.connector.waiting_for_kv.length == 0
        )
        assert state.connector.num_pinned == 0
    rows = python.requests
    done = rows["finish_reason"] == FinishReason.FINISHED
    assert set(rows["finish_reason"].tolist()) <= {FinishReason.FINISHED, FinishReason.REJECTED}
    longest = options["max_model_len"] - trace.num_prompt_tokens
    got = rows["num_output_tokens"]
    assert np.array_equal(got[done], np.minimum(trace.num_output_tokens, longest)[done])
    assert python.token_gaps["count"].sum() == (got[done] - 1).sum()
