"""Fair queues against closed forms: whose turn it is, what is charged, how far apart it gets."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

import kvsim
from kvsim.cli.main import main
from kvsim.config import Config
from kvsim.engine.replica import Replica
from kvsim.engine.setup import resolve
from kvsim.fleet.simulate import serve
from kvsim.records.request import Request
from kvsim.results.result import Result
from kvsim.rules import runs
from kvsim.testing import equal_tables
from kvsim.trace import Trace

#: A second per step, one request at a time, unless said otherwise.
ONE = {
    "model": "llama-3-8b",
    "gpu": "h100-sxm",
    "cost_model": "constant+seconds=1.0",
    "max_model_len": 256,
    "max_num_seqs": 1,
    "async_scheduling": False,
    "enable_prefix_caching": False,
    "backend": "python",
    "scheduling_policy": "vtc",
}


def ask(tenants: str, lengths: dict[str, tuple[int, int]], times: Any = 0.0) -> Trace:
    """Requests of tenants named by letters, each with its tenant's prompt and output."""
    arrival = np.broadcast_to(times, len(tenants))
    prompt, output = zip(*(lengths[t] for t in tenants), strict=True)
    return Trace.from_arrays(arrival, prompt, output, tenant=list(tenants))


def turns(trace: Trace, **options: Any) -> str:
    """Return whose requests were admitted, in order."""
    result = kvsim.simulate(trace, **ONE | options)
    order = np.argsort(result.requests["first_scheduled_time"], kind="stable")
    return "".join(str(trace.tenant_of(row)) for row in order.tolist())


def served(trace: Trace, **options: Any) -> tuple[Result, Replica]:
    """Serve a trace and return the replica, too."""
    found: list[Replica] = []
    result = serve(resolve(Config.build(**ONE | options)), trace, on_start=found.append)
    return result, found[0]


def counters(replica: Replica) -> list[int]:
    return [tenant.counter for tenant in replica.state.shares.tenants]


def deficits(replica: Replica) -> list[int]:
    return [tenant.deficit for tenant in replica.state.shares.tenants]


# -- virtual token counters -----------------------------------------------------------------------


def test_equal_tenants_take_turns_whoever_asked_first() -> None:
    assert turns(ask("aaaabbbb", {"a": (10, 3), "b": (10, 3)})) == "abababab"
    assert turns(ask("aaaabbbb", {"a": (10, 3), "b": (10, 3)}), scheduling_policy="fcfs") == (
        "aaaabbbb"
    )


def test_who_asks_for_half_as_much_has_two_turns() -> None:
    """4 + 2 x 4 is 12, 2 + 2 x 2 is 6: a b b, and at a tie a again."""
    assert turns(ask("aaaabbbbbbbb", {"a": (4, 4), "b": (2, 2)})) == "abbabbabbabb"


def test_an_output_token_weighs_two_of_a_prompt() -> None:
    assert turns(ask("aaabbb", {"a": (8, 1), "b": (2, 4)})) == "ababab"  # 10 each
    assert turns(ask("aaaabbbb", {"a": (8, 1), "b": (1, 2)})) == "abbabbaa"  # 10 and 5


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_a_tenant_of_twice_the_weight_has_two_turns(backend: str) -> None:
    same = ask("aaaabbbbbbbbcc", {"a": (10, 3), "b": (10, 3), "c": (10, 3)})
    assert turns(same, tenant_weights="b=2", backend=backend) == "abcbabcbabbabb"
    several = ask("ab" * 60, {"a": (10, 30), "b": (10, 30)})
    options = {"max_num_seqs": 4, "backend": backend, "tenant_weights": "b=3"}
    order = turns(several, **options)
    assert 0.70 < order[:60].count("b") / 60 < 0.80


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("d=2", "unknown tenant of tenant_weights 'd'"),
        ("a=0", "must be NAME=WEIGHT, a whole number"),
        ("a", "must be NAME=WEIGHT, a whole number"),
        ("a=2,a=3", "'a' is given twice"),
    ],
)
def test_weights_that_cannot_be_are_refused(weights: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        turns(ask("ab", {"a": (10, 3), "b": (10, 3)}), tenant_weights=weights)


def test_weights_are_vtcs() -> None:
    with pytest.raises(ValueError, match="tenant_weights: the trace names no tenants"):
        turns(Trace.from_arrays([0.0], [1], [1]), tenant_weights="a=2")
    with pytest.raises(ValueError, match="tenant_weights: needs scheduling_policy vtc"):
        turns(ask("a", {"a": (1, 1)}), tenant_weights="a=2", scheduling_policy="dlpm")


@pytest.mark.parametrize("waiting", ["both", "nobody"])
def test_who_comes_back_has_no_credit(waiting: str) -> None:
    """While b idles a is served 12 each time; then b takes turns and does not catch up.

    With ``nobody`` in the queue b is lifted to the one that left it last.
    """
    lengths = {"a": (4, 4), "b": (4, 4)}
    before = 8 if waiting == "both" else 2
    times = [0.0] * before + [6.5 if waiting == "nobody" else 9.5] * 8
    order = turns(ask("a" * before + "bbbbaaaa", lengths, times))
    assert order.startswith("aababab" if waiting == "nobody" else "aaabababab")


def test_what_is_charged_is_what_was_served() -> None:
    """Nobody is lifted where all ask at once: counters are 1 per prompt, 2 per output token."""
    trace = ask("abcab" * 5, {"a": (10, 30), "b": (20, 9), "c": (33, 5)})
    for options in ({}, {"enable_prefix_caching": True}, {"async_scheduling": True}):
        result, replica = served(trace, max_num_seqs=4, num_gpu_blocks_override=9, **options)
        assert result.summary["num_preemptions"] > 0  # what is computed again is free
        tenants = result.summary["tenants"]
        assert counters(replica) == [tenant["service"] for tenant in tenants]
        assert [tenant["service"] for tenant in tenants] == [10 * 70, 10 * 38, 5 * 43]


def test_the_first_that_does_not_fit_stops_the_others() -> None:
    """5 blocks of 16: a's second request is next and needs 4 of the 2 that are left."""
    trace = Trace.from_arrays(
        [0.0, 0.0, 0.5, 0.5], [30, 20, 60, 16], [8, 4, 2, 2], tenant=["b", "a", "a", "b"]
    )
    order = turns(trace, max_num_seqs=4, num_gpu_blocks_override=6, watermark=0.0)
    assert order == "baab"


def test_preempted_requests_keep_their_place_and_lift_nobody() -> None:
    trace = ask("ab" * 6, {"a": (10, 40), "b": (10, 40)})
    result, replica = served(trace, max_num_seqs=4, num_gpu_blocks_override=8)
    assert result.summary["num_preemptions"] > 2
    assert counters(replica) == [6 * 90, 6 * 90]


def test_ten_short_requests_are_one_long_one() -> None:
    """8 + 2 x 4 is 16, 64 + 2 x 48 is 160; at a tie a comes first."""
    order = turns(ask("a" * 60 + "b" * 6, {"a": (8, 4), "b": (64, 48)}))
    assert order == "ab" + ("a" * 10 + "b") * 5 + "a" * 9


@pytest.mark.long
@pytest.mark.parametrize("policy", ["vtc", "dlpm"])
@pytest.mark.parametrize("caching", [False, True])
def test_without_tenants_it_is_first_come_first_served(policy: str, caching: bool) -> None:
    rng = np.random.default_rng(3)
    columns = np.sort(rng.uniform(0, 3, 60)), rng.integers(1, 80, 60), rng.integers(1, 200, 60)
    options = ONE | {
        "cost_model": "roofline",
        "max_num_seqs": 12,
        "num_gpu_blocks_override": 80,
        "enable_prefix_caching": caching,
    }
    for tenant in (None, [5] * 60):
        trace = Trace.from_arrays(*columns, tenant=tenant)
        first = kvsim.simulate(trace, **options | {"scheduling_policy": "fcfs"})
        fair = kvsim.simulate(trace, **options | {"scheduling_policy": policy})
        assert first.summary["num_preemptions"] > 0
        assert equal_tables(first.requests, fair.requests)
        assert equal_tables(first.memory, fair.memory)
        assert first.summary == fair.summary


# -- runs of steps --------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("policy", ["vtc", "dlpm"])
@pytest.mark.parametrize("async_scheduling", [False, True])
def test_runs_of_steps_charge_every_token(
    policy: str, async_scheduling: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step comes to the same as in runs, though turns change while a head is refused."""
    lengths: Counter[bool] = Counter()
    ends = runs.end_run

    def end_run(state: Any, steps: int, last_token_time: float) -> None:
        lengths[runs.is_trying(state)] += steps
        ends(state, steps, last_token_time)

    monkeypatch.setattr(runs, "end_run", end_run)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tenant = rng.integers(0, 3, 30)
        trace = Trace.from_arrays(
            np.sort(rng.uniform(0, 40, 30)),
            rng.integers(1, 60, 30) + 100 * (tenant == 2),
            rng.integers(1, 90, 30),
            tenant=tenant,
        )
        options = ONE | {"max_num_seqs": (8, 3)[seed % 2], "num_gpu_blocks_override": 24}
        options |= {"scheduling_policy": policy, "async_scheduling": async_scheduling}
        if policy == "vtc" and seed > 2:
            options["tenant_weights"] = "1=3,2=2"
        by_runs, replica = served(trace, **options)
        by_steps, other = served(trace, record_steps=True, **options)
        assert equal_tables(by_runs.requests, by_steps.requests)
        assert equal_tables(by_runs.memory, by_steps.memory)
        assert by_runs.summary == by_steps.summary
        assert counters(replica) == counters(other)
    assert lengths[False] > 50
    assert lengths[True] > 20 or policy == "dlpm"


# -- deficits -------------------------------------------------------------------------------------


def test_the_longest_cached_prefix_comes_first() -> None:
    """Two contents of 64 tokens: whoever shares the one that was just computed goes first."""
    content = [1, 2, 1, 2, 1, 2]
    trace = Trace.from_arrays(
        [0.0] * 6,
        [64] * 6,
        [2] * 6,
        segments=[[(c, 0, 48), (100 + k, 0, 16)] for k, c in enumerate(content)],
        tenant=[0] * 6,
    )
    options = ONE | {"scheduling_policy": "dlpm", "enable_prefix_caching": True}
    result = kvsim.simulate(trace, **options)
    order = np.argsort(result.requests["first_scheduled_time"])
    assert [content[k] for k in order] == [1, 1, 1, 2, 2, 2]
    assert result.requests["num_cached_tokens"][order].tolist() == [0, 48, 48, 0, 48, 48]


def test_a_tenant_in_debt_waits_for_its_quantum() -> None:
    """14 per request of a quantum of 20: each tenant has two turns in its first, then one or two.

    20, 6, -8; then 12, -2; 18, 4, -10, by turns of the older tenant as long as it has anything.
    """
    trace = ask("a" * 6 + "b" * 6, {"a": (10, 4), "b": (10, 4)})
    order = turns(trace, scheduling_policy="dlpm", dlpm_quantum=20)
    assert order == "aabbabaabbab"


@pytest.mark.long
def test_cached_tokens_are_free() -> None:
    trace = Trace.from_arrays(
        [0.0] * 3, [64] * 3, [2] * 3, segments=[[(1, 0, 64)]] * 3, tenant=[0, 0, 0]
    )
    options = {"scheduling_policy": "dlpm", "enable_prefix_caching": True, "dlpm_quantum": 500}
    _, replica = served(trace, **options)
    # 64 + 2, then twice 16 + 2: a whole prompt is never cached, its last block is computed again.
    assert deficits(replica) == [500 - 66 - 18 - 18]
    assert counters(replica) == [3 * (64 + 2 * 2)]  # to virtual token counters they are not


def test_who_has_something_left_is_not_refilled() -> None:
    """20 each. a: 6 left. b: 6, then -8, refilled to 12, then -2."""
    _, replica = served(
        ask("abbb", {"a": (10, 4), "b": (10, 4)}), scheduling_policy="dlpm", dlpm_quantum=20
    )
    assert deficits(replica) == [6, -2]


def test_a_step_that_admitted_somebody_refills_nobody() -> None:
    """Two prompts of 10 use up 20; the third comes in with the next step."""
    result, _ = served(
        ask("aaa", {"a": (10, 4)}), scheduling_policy="dlpm", dlpm_quantum=20, max_num_seqs=4
    )
    assert result.requests["first_scheduled_time"].tolist() == [0, 0, 1]


def test_a_debt_larger_than_a_quantum_is_no_livelock() -> None:
    trace = ask("ab", {"a": (200, 20), "b": (200, 20)})
    assert turns(trace, scheduling_policy="dlpm", dlpm_quantum=1) == "ab"


# -- and both ------------------------------------------------------------------------------------


@pytest.mark.long
@examples(25)
@given(data=st.data())
def test_vtc_keeps_its_bound(data: st.DataObject) -> None:
    """Tenants that wait differ by at most 2 max(w_in L_in, w_out M) (arXiv 2401.00588)."""
    n = data.draw(st.integers(4, 40))
    numbers = st.lists(st.integers(1, 60), min_size=n, max_size=n)
    prompt, output = data.draw(numbers), data.draw(numbers)
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 1, 9]), min_size=n, max_size=n))
    tenant = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    trace = Trace.from_arrays(np.cumsum(gaps), prompt, output, tenant=tenant)
    options = {"num_gpu_blocks_override": 11, "max_num_seqs": data.draw(st.integers(1, 6))}
    gap = kvsim.simulate(trace, **ONE | options).summary["max_service_gap"]
    assert gap is None or gap <= 2 * max(*prompt, 2 * 160)


@pytest.mark.parametrize("policy", ["vtc", "dlpm"])
@pytest.mark.parametrize("scheduler", ["orca", "static", "vllm-v0"])
def test_other_schedulers_refuse(
    policy: str, scheduler: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", "llama-3-8b", "--gpu", "l4", "--num-requests", "3"]
    with pytest.raises(ValueError, match=f"{scheduler!r} does not support"):
        kvsim.simulate(
            ask("a", {"a": (3, 3)}),
            model="llama-3-8b",
            gpu="l4",
            scheduler=scheduler,
            scheduling_policy=policy,
        )
    with pytest.raises(SystemExit, match="2"):
        main(["run", *flags, "--scheduler", scheduler, "--scheduling-policy", policy])
    assert f"does not support {policy}; vllm does" in capsys.readouterr().err


def test_the_queue_is_listed_by_whose_turn_it_is() -> None:
    setup = resolve(
        Config.build(model="llama-3-8b", gpu="l40s", scheduling_policy="vtc", max_num_seqs=1)
    )
    scheduler = setup.make_scheduler()
    for number in range(3):
        scheduler.add(Request(number, 0.0, 10, 5))
    assert [one.request_id for one in scheduler.waiting] == [0, 1, 2]
