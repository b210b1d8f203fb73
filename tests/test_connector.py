"""KV connectors as the scheduler sees them, and aborts: what recorded schedules leave open."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

from kvsim.cases.case import CaseConfig, Workload
from kvsim.cases.contents import contents_of_case
from kvsim.cases.play import parts_of, play
from kvsim.cases.replay import _compare
from kvsim.engine.replica import Replica
from kvsim.records.connector import NO_LOAD, RECEIVED
from kvsim.records.request import PREEMPTED
from kvsim.results.tables import REQUESTS, FinishReason
from kvsim.rules.connector.loading import reserved_blocks
from kvsim.rules.connector.scheduler import find_computed, promote, start_load
from kvsim.rules.engine import queue_arrivals

SMALL = {
    "num_gpu_blocks": 30,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 32,
    "max_model_len": 64,
    "block_size": 4,
}


def config(role=None, on_failure="recompute", **options):
    connector = {"kind": "fake", "role": role, "failure_policy": on_failure} if role else None
    return CaseConfig.model_validate(SMALL | {"connector": connector} | options)


def workload(*requests):
    """Requests given as (arrival step, prompt, output, options)."""
    rows = [
        {"id": f"r{k}", "arrival_step": step, "segments": [[k, prompt]], "max_tokens": out} | more
        for k, (step, prompt, out, more) in enumerate(requests)
    ]
    return Workload.model_validate({"requests": rows})


def played(config, work, **options):
    entries = []
    for entry in play(config, work, check=True, **options):
        entries.append(entry)
        assert len(entries) < 2000
    return entries


def first(entries, field):
    return next((entry["s"], entry[field]) for entry in entries if field in entry)


def transfers():
    """What a request may load and send, mostly nothing."""
    some = st.fixed_dictionaries(
        {},
        optional={
            "remote_prefill": st.booleans(),
            "ext_tokens": st.integers(1, 40),
            "sync": st.booleans(),
            "unknown": st.integers(0, 2),
            "load_steps": st.integers(0, 4),
            "fail_from_block": st.integers(0, 5),
            "fail_request": st.booleans(),
            "remote_decode": st.booleans(),
            "send_steps": st.integers(0, 4),
        },
    )
    return st.one_of(st.none(), some)


@st.composite
def workloads(draw, kv=None):
    rows = []
    for k in range(draw(st.integers(1, 8))):
        shared = draw(st.integers(0, 1))
        row = {
            "id": f"r{k}",
            "arrival_step": draw(st.integers(0, 12)),
            "segments": [[shared, draw(st.integers(1, 30))], [10 + k, draw(st.integers(1, 20))]],
            "max_tokens": draw(st.integers(1, 20)),
            "priority": draw(st.integers(0, 2)),
            "kv": draw(transfers() if kv is None else kv),
            "abort_step": draw(st.one_of(st.none(), st.integers(0, 30))),
        }
        rows.append(row)
    # Comes last, so that a step is logged after all others have gone.
    rows.append({"id": "last", "arrival_step": 500, "segments": [[99, 5]], "max_tokens": 1})
    return Workload.model_validate({"requests": rows})


def options():
    window = [
        {"type": "full", "block_size": 4},
        {"type": "sliding_window", "block_size": 4, "window": 9},
    ]
    return st.fixed_dictionaries(
        {
            "num_gpu_blocks": st.integers(34, 60),
            "async_scheduling": st.booleans(),
            "enable_prefix_caching": st.booleans(),
            "policy": st.sampled_from(("fcfs", "priority")),
            "watermark": st.sampled_from((0.0, 0.1)),
            "groups": st.sampled_from((None, None, window)),
        }
    )


def without_blocks(work):
    """Take failing blocks out of a workload: they are known in one group only."""
    given = work.model_dump()
    for row in given["requests"]:
        if row["kv"]:
            row["kv"]["fail_from_block"] = None
    return Workload.model_validate(given)


@pytest.mark.long
@given(options(), workloads(), st.sampled_from(("kv_producer", "kv_consumer", "kv_both")))
@examples(30)
def test_memory_is_recounted_after_every_step(options, work, role):
    if options["groups"]:
        work = without_blocks(work)
    for on_failure in ("recompute", "fail"):
        entries = played(config(role, on_failure, **options), work)
        assert not entries[-1]["r"] + entries[-1]["w"] + entries[-1].get("h", [])
        assert entries[-1]["free2"] == options["num_gpu_blocks"] - 1


@given(options(), workloads(kv=st.none()))
@examples(15)
def test_a_connector_that_offers_nothing_changes_nothing(options, work):
    options["groups"] = None  # with windows, blocks are dropped in another order at the end
    plain = played(config(**options), work)
    role = "kv_producer" if not options["async_scheduling"] else None
    for entry, other in zip(plain, played(config(role, **options), work), strict=True):
        assert _compare(entry, other, ["sch", "new", "res", "pre", "nb", "fin", "abt"]) is None


@given(options(), workloads(), st.sampled_from(("kv_producer", "kv_consumer", "kv_both")))
@examples(15)
def test_both_engines_transfer_alike(options, work, role):
    if options["groups"]:
        work = without_blocks(work)
    given = config(role, **options)
    assert list(play(given, work)) == list(play(given, work, compiled=True))


def test_a_request_whose_kv_cannot_be_loaded_fails_or_is_computed():
    work = workload((0, 16, 4, {"kv": {"remote_prefill": True, "fail_request": True}}))
    failed = played(config("kv_consumer", "fail"), work)
    assert first(failed, "bad_req") == (1, ["r0"])
    assert not any("fin" in entry for entry in failed)  # it was in no batch
    assert failed[-1]["free2"] == 29
    computed = played(config("kv_consumer"), work)
    assert first(computed, "new")[1][0][:2] == ["r0", 0]
    assert sum(n for entry in computed for _, n in entry["sch"]) == 16 + 3


def test_a_failed_synchronous_load_is_cut_and_its_output_dropped():
    kv = {"ext_tokens": 12, "sync": True, "fail_from_block": 1}
    entries = played(config("kv_consumer"), workload((0, 16, 2, {"kv": kv})))
    assert entries[0]["sch"] == [["r0", 4]]
    assert entries[0]["bad"] == entries[0]["new"][0][2][0][1:]
    assert entries[1]["sch"] == [["r0", 12]]  # all behind the first block
    failed = played(config("kv_consumer", "fail"), workload((0, 16, 2, {"kv": kv})))
    assert failed[0]["fin"] == ["r0"]
    assert len(failed) == 1


def test_a_bad_block_that_an_earlier_request_shares_counts_as_good_for_a_later_one():
    work = sharing(
        {"remote_prefill": True, "load_steps": 3},
        {"remote_prefill": True, "load_steps": 3, "fail_from_block": 0},
    )
    entries = played(config("kv_consumer"), work)
    assert len(first(entries, "bad")[1]) == 5
    # The first begins anew, with other blocks; the second is cut behind those that both share.
    assert first(entries[2:], "new")[1] == [[1, 8, [[1, 2, 5, 4, 3]]], [2, 8, [[1, 2, 6, 7, 8]]]]


def sharing(*transfers):
    """Requests that hit the same two blocks, and load the rest."""
    rows = [{"id": 0, "arrival_step": 0, "segments": [[1, 8]], "max_tokens": 1}]
    for k, kv in enumerate(transfers, 1):
        segments = [[1, 8], [k, 9]]
        rows.append({"id": k, "arrival_step": 2, "segments": segments, "max_tokens": 1, "kv": kv})
    return Workload.model_validate({"requests": rows})


def test_a_load_that_has_failed_whole_is_held_until_it_has_ended():
    work = sharing(
        {"remote_prefill": True, "load_steps": 6},
        {"remote_prefill": True, "load_steps": 1, "fail_from_block": 0},
    )
    entries = played(config("kv_consumer"), work)
    assert first(entries, "bad")[0] == 3
    assert [entry.get("h") for entry in entries[1:6]] == [[1, 2], [1, 2], [1], [1], [1]]
    assert first(entries[3:], "new") == (4, [[2, 8, [[1, 2, 6, 7, 8]]]])


def test_who_has_loaded_and_must_wait_for_something_else_is_held():
    kv = {"remote_prefill": True, "load_steps": 2}
    work = workload((0, 8, 2, {"lora": 1, "kv": kv}), (1, 8, 6, {"lora": 2}))
    entries = played(config("kv_consumer", lora={"max_loras": 1}), work)
    assert first(entries, "rcv") == (2, ["r0"])
    assert [entry.get("h") for entry in entries[:7]] == [["r0"]] * 7
    assert not any(entry["w"] for entry in entries)


def test_kept_blocks_are_reserved_for_a_transfer():
    work = workload((0, 16, 1, {"kv": {"remote_decode": True, "send_steps": 3}}))
    entries = played(config("kv_producer"), work)
    assert [entry["free2"] for entry in entries] == [25, 25, 25, 25, 29]
    assert first(entries, "snt") == (4, ["r0"])
    assert first(entries, "fin") == (0, ["r0"])


def test_an_abort_ends_a_request_wherever_it_stands():
    work = workload(
        (0, 16, 20, {"abort_step": 3}),
        (0, 16, 20, {}),
        (1, 64 - 20, 10, {"abort_step": 2}),
        (0, 4, 2, {"abort_step": 9}),
    )
    entries = played(config(num_gpu_blocks=14, max_num_seqs=2), work)
    aborted = {name: entry["s"] for entry in entries for name in entry.get("abt", ())}
    assert aborted == {"r0": 3, "r2": 2}  # r3 had ended
    assert all("r0" not in entry["r"] for entry in entries if entry["s"] >= 3)
    assert entries[-1]["free2"] == 13


def test_only_the_tail_of_a_block_that_the_connector_covers_is_given_up(monkeypatch):
    replica = replica_of(config("kv_consumer"), workload((0, 16, 1, {}), (0, 16, 1, {})))
    state, request = started(replica)
    state.connector.block_size = 8  # as if hits could end inside a block
    monkeypatch.setattr("kvsim.rules.connector.scheduler.read_cache", lambda state, request: 12)
    for offered, hit, external in ((0, 12, 0), (12, 12, 0), (13, 8, 5), (16, 8, 8)):
        state.connector.offered[request.request_id] = offered
        assert find_computed(state, request) == hit + external
        assert (state.connector.hit, state.connector.external) == (hit, external)
        assert state.connector.is_async == (external > 0)


def replica_of(given, work):
    contents = contents_of_case(work)
    table = np.zeros(len(contents), dtype=REQUESTS)
    return Replica(0, parts_of(given), contents, table, start_time=0.0)


def started(replica):
    replica.submit(np.arange(1), np.zeros(1))
    queue_arrivals(replica.state)
    return replica.state, replica.state.requests[replica.state.waiting.head]


def test_a_replica_stands_idle_until_the_host_reports():
    work = workload((0, 16, 3, {}), (0, 8, 2, {}))
    replica = replica_of(config("kv_both"), work)
    state, connector = replica.state, replica.state.connector
    connector.offered[0], connector.keeps[1] = 16, 1
    replica.submit(np.arange(2), np.zeros(2))
    replica.advance(float("inf"))
    assert (state.num_outstanding, connector.num_pinned, connector.waiting_for_kv.length) == (
        1,
        1,
        1,
    )
    assert replica.next_event_time() == float("inf")
    replica.check_integrity()
    usage = replica.kv.usage
    assert (usage.token_states, usage.reservation) == (0, 7 * 4)
    connector.received[0], connector.num_received = 0, 1
    connector.sent[0], connector.num_sent = 1, 1
    replica.advance(float("inf"))
    assert (state.num_outstanding, connector.num_pinned, connector.load[0]) == (0, 0, NO_LOAD)
    assert replica.kv.num_free == 29
    assert not replica.abort(0)


def test_a_load_leaves_room_for_prompts_under_way():
    work = workload((0, 60, 2, {}), (0, 8, 2, {}))
    replica = replica_of(config("kv_consumer", max_num_batched_tokens=12), work)
    replica.submit(np.arange(1), np.zeros(1))
    replica.state.watched = True
    next(stop for stop in replica.stops() if stop)
    assert reserved_blocks(replica.state) == 15 - 3


def test_who_is_aborted_is_told_apart_in_the_results():
    work = workload((0, 16, 3, {}))
    replica = replica_of(config(), work)
    replica.state.watched = True
    replica.submit(np.arange(1), np.zeros(1))
    next(stop for stop in replica.stops() if stop)
    assert replica.abort(0)
    assert replica._requests["finish_reason"][0] == FinishReason.ABORTED


def test_what_cannot_transfer_is_refused():
    with pytest.raises(ValueError, match="connector: scheduler 'orca'"):
        config("kv_both", scheduler="orca")


def test_a_producer_lets_nobody_pass_a_request_whose_dropped_output_is_under_way():
    work = workload((3, 7, 7, {}), (2, 5, 14, {}), (2, 4, 2, {}), (1, 9, 13, {}))
    stages = {"async_scheduling": True, "pipeline_parallel_size": 2, "num_gpu_blocks": 10}
    entries = [e for e in played(config("kv_producer", **stages), work) if e["s"] >= 25]
    assert first(entries, "pre") == (25, ["r1"])
    step, rows = first(entries, "res")
    assert (step, [row[0] for row in rows]) == (28, ["r1", "r0"])


def test_a_load_needs_room_for_its_whole_prompt_but_not_beside_what_others_reserve():
    work = workload((0, 60, 1, {}), (0, 60, 1, {"kv": {"ext_tokens": 4}}))
    entries = played(config("kv_consumer", long_prefill_token_threshold=16), work)
    # 25 blocks are free, 11 of them reserved for the first prompt: 14 are less than a prompt's 15.
    assert first(entries, "ld") == (0, [["r1", 4, [[5]]]])


def test_all_groups_take_external_blocks_before_any_takes_more():
    groups = [{"type": "full", "block_size": 4}] * 2
    work = workload((0, 16, 1, {"kv": {"ext_tokens": 8, "sync": True}}))
    entries = played(config("kv_consumer", groups=groups), work)
    assert entries[0]["new"] == [["r0", 8, [[1, 2, 5, 6], [3, 4, 7, 8]]]]


def test_loaded_blocks_are_named_before_the_whole_prompt_fits():
    kv = {"ext_tokens": 8, "load_steps": 3}
    work = workload((0, 40, 1, {"kv": kv}), (1, 32, 10, {}))
    given = config("kv_consumer", num_gpu_blocks=14, long_prefill_token_threshold=4)
    entries = played(given, work)
    assert first(entries, "rcv") == (3, ["r0"])
    turn = entries[4]
    assert turn["h"] == ["r0"]
    assert turn["nh"] == 2 + 4  # those of the load, and what the other has computed
    assert first(entries, "new")[1][0][0] == "r1"


def test_an_admission_after_a_load_leaves_the_watermark():
    work = workload(
        (0, 9, 1, {"kv": {"ext_tokens": 8, "load_steps": 2}}),
        (0, 37, 12, {}),
    )
    tight = {"num_gpu_blocks": 14, "scheduler_reserve_full_isl": False}
    steps = {}
    for watermark in (0.0, 0.1):
        entries = played(config("kv_consumer", watermark=watermark, **tight), work)
        new = {row[0]: entry["s"] for entry in entries for row in entry.get("new", ())}
        steps[watermark] = new["r0"]
    assert steps[0.0] == 3
    assert steps[0.1] > 3


def test_loads_that_ended_free_their_blocks_before_sends_that_ended():
    work = workload(
        (0, 8, 1, {"kv": {"remote_prefill": True, "load_steps": 5}, "abort_step": 1}),
        (0, 8, 1, {"kv": {"remote_decode": True, "send_steps": 4}}),
    )
    last = played(config("kv_both", enable_prefix_caching=False), work)[-1]
    assert (last["rcv"], last["snt"]) == (["r0"], ["r1"])
    assert last["fql"][:5] == [4, 3, 2, 1, 5]


def test_a_fence_frees_the_blocks_of_all_groups_as_one_list():
    groups = [{"type": "full", "block_size": 4}] * 2
    given = config("kv_consumer", groups=groups, async_scheduling=True)
    entries = played(given, workload((0, 8, 5, {"abort_step": 1}), (1, 4, 1, {})))
    assert entries[1]["abt"] == ["r0"]
    assert entries[1]["fql"][-4:] == [4, 3, 2, 1]


def test_a_request_that_was_preempted_before_its_load_comes_back_as_resumed():
    replica = replica_of(config("kv_consumer"), workload((0, 16, 1, {})))
    state, request = started(replica)
    state.connector.offered[0] = 16
    request.num_preemptions = 1
    assert find_computed(state, request) == 16
    assert start_load(state, request.place)
    assert not promote(state, request)
    state.connector.load[0] = RECEIVED
    assert promote(state, request)
    assert request.status == PREEMPTED


def test_a_request_whose_prompt_is_computed_reserves_nothing():
    replica = replica_of(config("kv_consumer"), workload((0, 8, 30, {})))
    replica.submit(np.arange(1), np.zeros(1))
    replica.state.watched = True
    next(stop for stop in replica.stops() if stop)
    (request,) = (r for r in replica.state.requests if r.request_id == 0)
    request.num_tokens += 16  # as after a preemption: it computes its output again
    assert reserved_blocks(replica.state) == 0
