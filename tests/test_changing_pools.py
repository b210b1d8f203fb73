"""Prefill and decode pools whose replicas come, drain and fail: no request and no block twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, traces

import kvsim
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.fleet.scaling.replica_changes import merge
from kvsim.fleet.simulate import serve as serve_setup
from kvsim.results.tables import FinishReason
from kvsim.testing import equal_tables
from kvsim.trace import Trace

#: A second a step, nothing that overlaps, and transfers that take no time.
SECONDS: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1",
    "async_scheduling": False,
}


#: Two and two replicas, and nobody new in time.
TWO_EACH: dict[str, Any] = {
    **SECONDS,
    "num_prefill_workers": 2,
    "num_decode_workers": 2,
    "cold_start": 100.0,
}
TOKEN = 131_072  # bytes of KV of Llama-3.1-8B: 2 x 32 layers x 8 heads x 128 x 2 bytes
ONE = Trace.from_arrays([0.0], [10], [8])  # first token at 2 s: a step here, a step there; end at 9


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["pull", "push"])
@pytest.mark.parametrize(
    ("planned", "times", "tokens_moved"),
    [
        ("at+time=4.5+pool=decode+detection=2", (6.5, 8.5, 15.5), 20),  # anew, all of it
        ("at+time=4.5+replica=1+pool=decode+detection=2", (0.0, 2.0, 9.0), 10),  # not this one
        ("at+time=0.5+pool=decode+detection=2", (2.5, 4.5, 11.5), 10),  # the prompt is given up
        ("at+time=0.5+pool=prefill+detection=2", (2.5, 4.5, 11.5), 10),
        ("at+time=1.5+pool=prefill+detection=2", (0.0, 2.0, 9.0), 10),  # it was read already
        # Three tokens are there at 4.5 s; prompt and these are computed and moved, five follow.
        ("at+time=4.5+pool=decode+detection=2+policy=migrate", (0.0, 2.0, 12.5), 10 + 13),
        ("at+time=0.5+pool=prefill+detection=2+policy=migrate", (0.0, 4.5, 11.5), 10),
    ],
)
def test_a_request_survives_the_replica_of_its_prompt_and_of_its_output(
    planned: str, times: tuple[float, ...], tokens_moved: int, protocol: str
) -> None:
    for backend in ("python", "compiled"):
        result = kvsim.simulate(
            ONE, **TWO_EACH, failures=planned, kv_transfer_protocol=protocol, backend=backend
        )
        row = result.requests[0]
        names = ("first_scheduled_time", "first_token_time", "finish_time")
        assert [row[name] for name in names] == pytest.approx(times, abs=1e-3)
        assert row["num_output_tokens"] == 8
        assert result.summary["kv_transfers"]["bytes"] == tokens_moved * TOKEN
        assert result.summary["scaling"]["num_failures"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["python", "compiled"])
@pytest.mark.parametrize(
    ("protocol", "time", "times", "prefill_replica"),
    [
        # Computed in two steps, its KV is under way from 2 to 3.9: two more from 3.5 on.
        ("pull", 3.0, (0.0, 5.5, 12.5), 2),
        ("push", 3.0, (0.0, 5.5, 12.5), 2),
        # Nobody has blocks for it yet: computed elsewhere from 1 on, moved, and a step here.
        ("pull", 0.5, (1.0, 5.9065, 12.9065), 3),
        ("push", 0.5, (1.0, 3.0, 10.0), -1),
    ],
)
def test_a_decode_replica_may_compute_what_it_cannot_read_any_more(
    backend: str, protocol: str, time: float, times: tuple[float, ...], prefill_replica: int
) -> None:
    result = kvsim.simulate(
        Trace.from_arrays([0.0], [8000], [8]),
        **TWO_EACH,
        max_num_batched_tokens=4000,
        kv_transfer_fabric="tcp-ucx",
        kv_transfer_protocol=protocol,
        failures=f"at+time={time}+pool=prefill+detection=0.5+policy=recompute",
        backend=backend,
        check_invariants=backend == "python",
    )
    row = result.requests[0]
    names = ("first_scheduled_time", "first_token_time", "finish_time")
    assert [row[name] for name in names] == pytest.approx(times, abs=1e-3)
    assert (row["prefill_replica"], row["num_output_tokens"]) == (prefill_replica, 8)
    moved = 8000 * TOKEN if prefill_replica == 3 else 0
    assert result.summary["kv_transfers"]["bytes"] == moved
    assert result.summary["scaling"]["num_lost"] == (prefill_replica == 3)


def test_a_lost_request_says_so() -> None:
    for pool, time in (("decode", 4.5), ("prefill", 0.5)):
        planned = f"at+time={time}+pool={pool}+detection=2+policy=fail"
        result = kvsim.simulate(ONE, **TWO_EACH, failures=planned)
        assert result.requests["finish_reason"].tolist() == [FinishReason.FAILED]
        assert result.requests["finish_time"].tolist() == [time + 2]
        scaling = result.summary["scaling"]
        assert scaling["num_lost"] == scaling["pools"][pool]["num_lost"] == 1


#: Room for one prompt, which takes 1.9 s over the link.
NARROW: dict[str, Any] = {
    **SECONDS,
    "num_prefill_workers": 1,
    "num_decode_workers": 2,
    "num_gpu_blocks_override": 520,
    "max_model_len": 8200,
    "max_num_batched_tokens": 8192,
    "enable_prefix_caching": False,
    "kv_transfer_fabric": "tcp-ucx",
    "cold_start": 100.0,
}


@pytest.mark.parametrize("lease", [0.5, 10.0])
def test_what_nobody_comes_for_is_held_until_its_lease_ends(lease: float) -> None:
    """Read from 1 s on; the reader dies at 2 and is missed at 3. The next prompt needs the room."""
    trace = Trace.from_arrays([0.0, 0.5], [8000, 8000], [4, 4])
    result = kvsim.simulate(
        trace,
        **NARROW,
        failures=f"at+time=2+pool=decode+detection=1+policy=fail+lease={lease}",
        check_invariants=True,
    )
    freed = max(3.0, 2.0 + lease)
    assert result.requests["first_scheduled_time"].tolist() == [0.0, freed]
    assert result.requests["finish_reason"].tolist() == [FinishReason.FAILED, 0]
    # What was broken off has not arrived.
    assert result.summary["kv_transfers"]["bytes"] == 8000 * TOKEN
    assert result.summary["kv_transfers"]["num_transfers"] == 1


def test_who_reads_from_a_dead_replica_gives_its_blocks_back() -> None:
    """Read from 1 s on; the source dies at 2. At 4 the reader begins anew, with all its blocks."""
    trace = Trace.from_arrays([0.0], [8000], [4])
    options = NARROW | {"num_prefill_workers": 2, "num_decode_workers": 1}
    row = kvsim.simulate(
        trace, **options, failures="at+time=2+pool=prefill+detection=2", check_invariants=True
    ).requests[0]
    assert row["first_scheduled_time"] == 4.0
    assert row["prefill_replica"] == 2
    assert row["transfer_time"] == pytest.approx(8000 * TOKEN / 0.55e9)
    assert row["first_token_time"] == pytest.approx(6 + row["transfer_time"])


def test_who_needs_nothing_of_a_dead_replica_goes_on() -> None:
    result = kvsim.simulate(
        Trace.from_arrays([0.0], [50], [8]),
        **TWO_EACH,
        kv_transfer_protocol="push",
        kv_recompute_threshold=100,
        failures="at+time=0.5+pool=prefill+detection=0",
    )
    row = result.requests[0]
    assert (row["first_scheduled_time"], row["finish_time"]) == (0.0, 8.0)
    assert row["prefill_replica"] == -1
    assert result.summary["scaling"]["num_lost"] == 0


def test_each_pool_has_an_autoscaler_of_its_own() -> None:
    """Ten prompts a step apart, each a step: one prefill replica would do, outputs pile up."""
    trace = Trace.from_arrays(list(range(40)), [64] * 40, [20] * 40)
    pools = [
        {"role": "prefill", "replicas": 1},
        {"role": "decode", "replicas": 1, "autoscaler": "hpa+target=2+max=3+interval=5+window=0"},
    ]
    result = kvsim.simulate(trace, **SECONDS, pool=pools, max_num_seqs=4, cold_start=7.0)
    scaling = result.summary["scaling"]
    assert scaling["pools"]["prefill"]["peak_replicas"] == 1
    assert scaling["pools"]["decode"]["peak_replicas"] == 3
    assert scaling["peak_replicas"] == 4
    assert result.summary["completed"] == 40
    # Of both pools together from change to change.
    whole = {row["time"]: row["ready"] for row in scaling["timeline"]}
    own = {row["time"]: row["ready"] + 1 for row in scaling["pools"]["decode"]["timeline"]}
    assert whole == own
    lives = [row["lifetime"] for row in result.summary["replicas"]]
    assert result.summary["gpu_hours"] == pytest.approx(sum(lives) / 3600)


def test_timelines_add_up() -> None:
    def row(time: float, ready: int, starting: int = 0) -> dict[str, float]:
        return {"time": time, "ready": ready, "starting": starting, "draining": 0}

    assert merge([[row(0, 1), row(2, 2), row(5, 1)], [row(0, 3), row(2, 3, 1), row(5, 4)]]) == [
        row(0, 4),
        row(2, 5, 1),
        row(5, 5),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"failures": "at+pool=mixed"}, "pool=mixed: must be one of prefill and decode"),
        ({"failures": "at+replica=2"}, "replica=2: must be below 2"),
        (
            {"failures": "at", "prefill_router": "chwbl"},
            "router 'chwbl' needs a constant number of replicas",
        ),
    ],
)
def test_a_wrong_failure_is_refused_in_one_line(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kvsim.simulate(ONE, **(TWO_EACH | options))


@pytest.mark.slow
@examples(240)
@given(trace=traces(max_requests=30), data=st.data())
def test_every_request_ends_once_and_every_block_is_freed_once(
    trace: Trace, data: st.DataObject
) -> None:
    draw = data.draw
    fails = draw(st.sampled_from(["", "rate+gpu-hours=0.0001", "rate+gpu-hours=0.0005", "at"]))
    if fails == "at":
        pool, place = draw(st.sampled_from(["prefill", "decode"])), draw(st.integers(0, 1))
        fails = f"at+time={draw(st.sampled_from([0.1, 0.3]))}+replica={place}+pool={pool}"
    if fails:
        policy = draw(st.sampled_from(["retry", "recompute", "fail", "migrate"]))
        fails += f"+policy={policy}" + ("+limit=50" if policy == "migrate" else "")
        fails += f"+detection={draw(st.sampled_from([0, 0.05, 0.3]))}"
        fails += f"+lease={draw(st.sampled_from([0, 0.2, 5]))}"
    options: dict[str, Any] = {
        **SECONDS,
        "cost_model": "constant+seconds=0.02",
        "num_prefill_workers": draw(st.integers(2, 3)),
        "num_decode_workers": draw(st.integers(2, 3)),
        "num_gpu_blocks_override": draw(st.integers(8, 60)),
        "max_model_len": draw(st.sampled_from([60, 200, 500])),
        "max_num_seqs": draw(st.integers(1, 8)),
        "max_num_batched_tokens": draw(st.sampled_from([16, 64, 512])),
        "async_scheduling": draw(st.booleans()),
        "router": draw(
            st.sampled_from(
                ["round-robin", "least-outstanding", "vllm-dp", "dynamo", "llm-d+index=precise"]
            )
        ),
        "prefill_router": draw(st.sampled_from(["round-robin", "least-outstanding", "dynamo"])),
        "kv_transfer_protocol": draw(st.sampled_from(["pull", "push"])),
        "kv_transfer_fabric": draw(st.sampled_from(["tcp-ucx", "nixl-vllm", "400g-ib"])),
        "disaggregation": draw(
            st.sampled_from(["always", "llm-d", "dynamo", "splitwise+tokens=60"])
        ),
        "kv_recompute_threshold": draw(st.sampled_from([0, 20])),
        "proxy_latency": draw(st.sampled_from([0.0, 0.03])),
        "max_concurrency": draw(st.sampled_from([None, 3])),
        "session_think_time": draw(st.sampled_from([None, 0.1])),
        "cold_start": draw(st.sampled_from([0.0, 0.3])),
        "failures": fails or None,
        "kv_store": draw(
            st.sampled_from(
                [None, None, "peer", "mooncake+gib=0.01", "lmcache+chunk=16+pull=always"]
            )
        ),
    }
    if not fails or draw(st.booleans()):
        name = draw(st.sampled_from(["hpa+target=1", "wva", "dynamo-load", "kpa", "llumnix"]))
        options["autoscaler"] = f"{name}+max=4+interval=0.2"
    trace = trace.with_num_samples(1)
    replicas: list[Replica] = []
    setup = resolve(kvsim.Config.build(**options, backend="python", check_invariants=True))
    python = serve_setup(setup, trace, on_start=replicas.append)
    compiled = kvsim.simulate(trace, **options, backend="compiled")
    assert 0.0 <= (python.summary["external_prefix_cache_hit_rate"] or 0.0) <= 1.0
    assert equal_tables(python.requests, compiled.requests)
    assert equal_tables(python.memory, compiled.memory)
    assert python.summary == compiled.summary
    reasons = python.requests["finish_reason"]
    allowed = {FinishReason.FINISHED, FinishReason.REJECTED}
    if "policy=fail" in fails:
        allowed.add(FinishReason.FAILED)
    assert set(reasons.tolist()) <= allowed
    for replica in replicas:
        state = replica.state
        assert (
            state.num_outstanding == state.kv.num_held == state.connector.waiting_for_kv.length == 0
        )
        # Who has failed may not have taken in that its blocks were read.
        assert state.connector.num_pinned == state.connector.num_sent
    done = reasons == FinishReason.FINISHED
    longest = options["max_model_len"] - trace.num_prompt_tokens
    got = python.requests["num_output_tokens"]
    assert np.array_equal(got[done], np.minimum(trace.num_output_tokens, longest)[done])
    assert (python.requests["finish_time"][done] >= python.requests["arrival_time"][done]).all()


#: Pushed KV, by priority, and pools of so few blocks that two prompts fill one.
TIGHT: dict[str, Any] = {
    "model": "llama-3-8b",
    "gpu": "b200",
    "block_size": 4,
    "max_model_len": 64,
    "max_num_seqs": 11,
    "scheduling_policy": "priority",
    "num_gpu_blocks_override": 29,
    "max_num_batched_tokens": 16,
    "cost_model": "constant+seconds=0.02",
    "num_prefill_workers": 1,
    "num_decode_workers": 2,
    "kv_transfer_protocol": "push",
    "router": "least-outstanding",
    "kv_transfer_fabric": "tcp-ucx",
}


ELEVEN = Trace.from_arrays(
    [1.0, 1.03, 1.03, 2.03, 2.03, 2.03, 3.06, 3.065, 3.065, 3.095, 4.135],
    [37, 32, 12, 39, 37, 27, 32, 43, 35, 25, 63],
    [22, 15, 13, 19, 22, 25, 5, 24, 8, 25, 7],
    priority=[0, 2, 0, 0, 1, 0, 1, 2, 2, 1, 2],
)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["retry", "recompute", "migrate"])
def test_replicas_that_wait_for_each_other_begin_requests_anew(policy: str) -> None:
    """The decode replica has 16 of 28 blocks for request 10, which is not computed.

    It is the last one by priority, and the prefill replica is full of those before it, which wait
    behind request 0: that one grew until it had to give up its own blocks, and finds no room.
    """
    failed = f"at+time=0.2+replica=0+pool=decode+policy={policy}"
    python, compiled = (
        kvsim.simulate(
            ELEVEN, **TIGHT, failures=failed, backend=backend, check_invariants=backend == "python"
        )
        for backend in ("python", "compiled")
    )
    assert equal_tables(python.requests, compiled.requests)
    assert python.summary == compiled.summary
    assert python.summary["completed"] == len(ELEVEN)
    number = python.summary["kv_transfers"]["num_taken_back"]
    assert number == 3  # of four, and the oldest one keeps its blocks
    assert f"{number} times a request was restarted" in " ".join(python.provenance["notes"])
    alone = kvsim.simulate(ELEVEN, **TIGHT, backend="python")
    assert alone.summary["kv_transfers"]["num_taken_back"] == 0
    assert "was restarted" not in " ".join(alone.provenance["notes"])


def test_pools_that_nothing_changes_do_not_wait_for_each_other_either() -> None:
    """The first one to come grows at its decode replica, until the others hold all that is left.

    They stand still at 0.46 s, while nothing has come or gone since 0.28 s. Request 2 begins anew,
    meets request 1 once more in the next step, and then waits until that one has ended.
    """
    arrivals = [0.211, 0.215, 0.221, 0.251]
    trace = Trace.from_arrays(arrivals, [40, 63, 63, 40], [20, 1, 20, 26], priority=[2, 2, 0, 2])
    options = TIGHT | {"num_decode_workers": 1}
    python, compiled = (
        kvsim.simulate(trace, **options, backend=backend, check_invariants=backend == "python")
        for backend in ("python", "compiled")
    )
    assert equal_tables(python.requests, compiled.requests)
    assert python.summary["completed"] == 4
    assert python.summary["kv_transfers"]["num_taken_back"] == 2
    begun = np.sort(python.requests["first_scheduled_time"])
    assert begun[1] == pytest.approx(0.480532509)
    ends, starts = (python.requests[f"{name}_time"] for name in ("finish", "first_scheduled"))
    assert ends[1] < starts[2] < ends[1] + 0.02 < ends[3]
    for seconds, number in ((0.2495, 0), (0.2497, 1), (0.2697, 2)):  # from 0.211 s on
        cut = kvsim.simulate(trace, **options, backend="python", horizon=seconds)
        assert cut.summary["kv_transfers"]["num_taken_back"] == number
    fair = kvsim.simulate(trace, **options | {"scheduling_policy": "fcfs"}, backend="python")
    assert fair.summary["kv_transfers"]["num_taken_back"] == 0


#: Something looks at the fleet all the time, and changes nothing.
TICKS = "hpa+max=1+interval=0.03"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arrivals", "options"),
    [
        ([0.0], {}),  # its KV is on its way
        ([0.0, 0.0], {}),  # that of both is
        ([0.0], {"failures": "at+time=0.05+pool=prefill+detection=2", "cold_start": 0.0}),
        (
            [0.0, 20.0, 40.0],
            {"kv_store": "mooncake+pull=always", "num_gpu_blocks_override": 100},
        ),  # reads
    ],
)
def test_who_waits_for_what_comes_does_not_begin_anew(
    arrivals: list[float], options: dict[str, Any]
) -> None:
    """Another prompt comes between two alike, so that the store alone has the first one's KV."""
    trace = Trace.from_arrays(
        arrivals,
        [1200] * len(arrivals),
        [4] * len(arrivals),
        segments=[[(k % 2, 0, 1200)] for k in range(len(arrivals))],
    )
    one_each = {"num_prefill_workers": 1, "num_decode_workers": 1, "kv_transfer_fabric": "tcp-ucx"}
    given = {
        **SECONDS,
        **one_each,
        "kv_transfer_protocol": "push",
        "cost_model": "constant+seconds=0.1",
    }
    given |= {"max_model_len": 1400} | options
    quiet, watched = (
        kvsim.simulate(trace, **given, **more, backend="python", check_invariants=True)
        for more in ({}, {"autoscaler": TICKS})
    )
    assert watched.summary["kv_transfers"]["num_taken_back"] == 0
    assert equal_tables(quiet.requests, watched.requests)
    assert quiet.summary["completed"] == len(arrivals)
    if "kv_store" in options:
        assert quiet.summary["kv_store"]["num_fetches"] == 1


def test_what_is_held_for_nobody_is_waited_for() -> None:
    """Blocks of two prompts whose decode replica is lost are free 30 s after that, then 10 runs."""
    failed = "at+time=0.2+replica=0+pool=decode+policy=fail"
    result = kvsim.simulate(ELEVEN, **TIGHT, failures=failed, backend="python")
    assert result.summary["kv_transfers"]["num_taken_back"] == 0
    assert result.requests["first_token_time"][10] > 1.2 + 30
    assert result.summary["completed"] + result.summary["num_failed"] == len(ELEVEN)


@pytest.mark.long
@pytest.mark.parametrize("protocol", ["push", "pull"])
@examples(60)
@given(
    trace=traces(), planned=st.sampled_from(["", "replica=0+pool=decode", "replica=0+pool=prefill"])
)
def test_no_order_of_requests_keeps_two_pools_from_going_on(
    trace: Trace, planned: str, protocol: str
) -> None:
    failures = {"failures": f"at+time=0.2+detection=0.5+{planned}"} if planned else {}
    options = {**TIGHT, **failures, "kv_transfer_protocol": protocol, "max_model_len": 96}
    result = kvsim.simulate(trace, **options, backend="python", check_invariants=True)
    ended = result.summary["completed"] + result.summary["num_rejected"]
    assert ended == len(trace)
