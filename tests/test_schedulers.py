"""Schedulers as literal event logs, on pools small enough to follow by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from driving import in_turn as request
from driving import kv_config
from driving import request as twin
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples

import kvsim
import workloads
from kvsim.attention.full import FullAttention
from kvsim.budget.layout import KV_DTYPES, KVLayout, LayerKV
from kvsim.config import Config
from kvsim.engine.contents import text_ranks
from kvsim.engine.setup import resolve
from kvsim.engines.baselines.sched.schedulers import OrcaScheduler, StaticScheduler, VllmV0Scheduler
from kvsim.features.prefill_interval import PrefillInterval
from kvsim.kv.contiguous import ContiguousOracle
from kvsim.kv.manager import NO_HIT, KVCacheConfig
from kvsim.kv.paged import PagedManager
from kvsim.records.request import Request, Status
from kvsim.sched.scheduler import Scheduler, SchedulerConfig, StepPlan
from kvsim.sched.vllm import VllmScheduler
from kvsim.testing import equal_tables
from kvsim.trace import Trace


def pool(num_gpu_blocks: int, block_size: int = 4, **options: object) -> PagedManager:
    options = {"max_model_len": 64, "enable_prefix_caching": False} | options
    return PagedManager(kv_config(num_gpu_blocks, FullAttention(block_size), **options))  # type: ignore[arg-type]


def config(**options: object) -> SchedulerConfig:
    options = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 16} | options
    return SchedulerConfig(**options)  # type: ignore[arg-type]


def run(scheduler: Scheduler, requests: list[Request], max_steps: int = 100) -> list[str]:
    """Serve requests that are all there from the start; one line per step."""
    for r in requests:
        scheduler.add(r)
    log = []
    while scheduler.has_work and len(log) < max_steps:
        plan = scheduler.schedule(0.0)
        scheduled = zip(plan.requests, plan.num_tokens, strict=True)
        line = " ".join(f"{r.request_id}:{n}" for r, n in scheduled)
        if plan.preempted:
            line += " !" + ",".join(str(r.request_id) for r in plan.preempted)
        output = scheduler.complete(plan, 0.0)
        if output.finished:
            line += " ." + ",".join(str(r.request_id) for r in output.finished)
        log.append(line)
    return log


def test_vllm_mixes_decodes_and_prompt_chunks_within_the_budget() -> None:
    log = run(VllmScheduler(pool(50), config()), [request(0, 10, 3), request(1, 20, 2)])
    assert log == ["0:10 1:6", "0:1 1:14", "0:1 1:1 .0,1"]


def test_vllm_preempts_the_latest_and_computes_it_again_with_its_output() -> None:
    scheduler = VllmScheduler(pool(6), config())  # 5 usable blocks of 4 slots
    log = run(scheduler, [request(0, 7, 5), request(1, 7, 5)])
    assert log == [
        "0:7 1:7",
        "0:1 1:1",  # both fill their second block
        "0:1 !1",  # one block left: the first takes it, then nothing for the second
        "0:1",  # the second needs 3 blocks for its 9 tokens, 2 are free
        "0:1 .0",
        "1:9",  # prompt and two tokens, at once
        "1:1",
        "1:1 .1",
    ]
    assert scheduler.num_preemptions == 1
    assert scheduler.num_recomputed_tokens == 8  # the ninth token had not been computed before


def test_vllm_head_of_the_queue_blocks_those_behind_it() -> None:
    scheduler = VllmScheduler(pool(5), config())
    log = run(scheduler, [request(0, 8, 3), request(1, 12, 1), request(2, 1, 1)])
    # The third would have fitted beside the first all along.
    assert log == ["0:8", "0:1", "0:1 .0", "1:12 2:1 .1,2"]


def test_equals_wait_in_the_order_of_their_ids_as_text() -> None:
    scheduler = VllmScheduler(pool(50), config(policy="priority"))
    ranks = text_ranks(map(str, range(13))).tolist()
    for index, rank in enumerate(ranks):
        one = twin(index, 1, 1)
        one.id_rank = rank
        scheduler.add(one)
    order = [r.request_id for r in scheduler.waiting]
    assert order == sorted(range(13), key=str) == [0, 1, 10, 11, 12, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.long
@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=20, unique=True))
def test_ids_are_ranked_as_text(ids: list[str]) -> None:
    assert text_ranks(ids).tolist() == [sorted(ids).index(one) for one in ids]


@pytest.mark.long
@pytest.mark.parametrize("backend", ["python", "compiled"])
def test_of_equally_urgent_requests_the_first_as_text_is_served_first(backend: str) -> None:
    trace = Trace.from_arrays([0.0] * 12, [10] * 12, [3] * 12, priority=[1] * 11 + [0])
    options: dict[str, Any] = {"model": "gpt2", "gpu": "l4", "backend": backend}
    run = kvsim.simulate(trace, scheduling_policy="priority", max_num_seqs=1, **options)
    order = np.argsort(run.requests["first_scheduled_time"]).tolist()
    assert order == [11, 0, 1, 10, 2, 3, 4, 5, 6, 7, 8, 9]


def test_vllm_priority_preempts_the_least_urgent_even_if_scheduled_already() -> None:
    requests = [request(0, 8, 4, priority=2), request(1, 8, 4, priority=0)]
    log = run(VllmScheduler(pool(6), config(policy="priority")), requests)
    # The urgent one was admitted first; at the shortage the other one goes.
    assert log[:3] == ["1:8 0:8", "1:1 !0", "1:1"]
    late = VllmScheduler(pool(6), config(policy="priority"))
    late.add(request(0, 8, 4, priority=2))
    late.complete(late.schedule(0.0), 0.0)
    late.add(request(1, 8, 4, priority=0))
    late.complete(late.schedule(0.0), 0.0)  # 0 takes its third block, 1 its two
    plan = late.schedule(0.0)
    # 0 was scheduled first, then 1 needs a block: 0 gives its step and its blocks back.
    assert [r.request_id for r in plan.requests] == [1]
    assert [r.request_id for r in plan.preempted] == [0]


def test_vllm_without_chunked_prefill_waits_for_a_whole_step() -> None:
    scheduler = VllmScheduler(pool(50), config(enable_chunked_prefill=False))
    log = run(scheduler, [request(0, 10, 1), request(1, 10, 1)])
    assert log == ["0:10 .0", "1:10 .1"]
    assert not scheduler.head_refused  # the budget held it back, not memory


def test_vllm_long_prefill_threshold_spares_a_lone_request() -> None:
    limits = {"long_prefill_token_threshold": 4}
    assert run(VllmScheduler(pool(50), config(**limits)), [request(0, 12, 1)]) == ["0:12 .0"]
    log = run(VllmScheduler(pool(50), config(**limits)), [request(0, 6, 1), request(1, 6, 1)])
    assert log == ["0:4 1:4", "0:2 1:2 .0,1"]


def test_vllm_keeps_a_watermark_free_unless_idle() -> None:
    kv = pool(11, watermark=0.3)
    log = run(VllmScheduler(kv, config()), [request(0, 16, 2), request(1, 13, 1)])
    assert log == ["0:16", "0:1 .0", "1:13 .1"]  # 10 - 4 - 4 < 3: the second waits
    log = run(VllmScheduler(pool(11), config()), [request(0, 16, 2), request(1, 13, 1)])
    assert log == ["0:16", "0:1 1:13 .0,1"]  # the first step's budget was used up


def test_orca_reserves_everything_at_admission_and_never_preempts() -> None:
    kv = pool(6, reserve_output=True)
    scheduler = OrcaScheduler(kv, config())
    log = run(scheduler, [request(0, 7, 5), request(1, 7, 5), request(2, 1, 1)])
    assert log == [
        "0:7",
        "0:1",
        "0:1",
        "0:1",
        "0:1 .0",
        "1:7 2:1 .2",
        "1:1",
        "1:1",
        "1:1",
        "1:1 .1",
    ]
    assert scheduler.num_preemptions == 0


def test_orca_computes_whole_prompts_beyond_the_token_budget() -> None:
    log = run(OrcaScheduler(pool(50), config()), [request(0, 30, 2), request(1, 30, 1)])
    assert log == ["0:30 1:30 .1", "0:1 .0"]


def test_static_runs_a_batch_to_its_last_request() -> None:
    kv = pool(50, reserve_output=True)
    scheduler = StaticScheduler(kv, config(max_num_seqs=2))
    log = run(scheduler, [request(0, 4, 1), request(1, 4, 3), request(2, 4, 1)])
    assert log == ["0:4 1:4 .0", "1:1", "1:1 .1", "2:4 .2"]


def test_static_holds_the_slots_of_ended_requests() -> None:
    kv = pool(50, reserve_output=True)
    scheduler = StaticScheduler(kv, config())
    for r in (request(0, 8, 1), request(1, 8, 9)):
        scheduler.add(r)
    scheduler.complete(scheduler.schedule(0.0), 0.0)
    usage = kv.usage
    assert (usage.token_states, usage.reservation, usage.internal) == (8, 8, 8)
    kv.check_integrity()
    while scheduler.has_work:
        scheduler.complete(scheduler.schedule(0.0), 0.0)
    assert kv.usage.unallocated == kv.total_bytes


def test_the_refused_flag_is_kept_until_the_next_attempt() -> None:
    scheduler = VllmScheduler(pool(5), config(max_num_seqs=2))
    for r in (request(0, 8, 6), request(1, 12, 1)):
        scheduler.add(r)
    states = []
    while scheduler.has_work:
        plan = scheduler.schedule(0.0)
        states.append(scheduler.head_refused)
        scheduler.complete(plan, 0.0)
    assert states == [True] * 6 + [False]
    full = VllmScheduler(pool(50), config(max_num_seqs=1))
    for r in (request(0, 8, 2), request(1, 12, 1)):
        full.add(r)
    full.schedule(0.0)
    assert not full.head_refused  # max_num_seqs held it back


def test_recomputation_hits_the_blocks_a_preempted_request_left_behind() -> None:
    scheduler = VllmScheduler(
        pool(8, enable_prefix_caching=True), config(max_num_batched_tokens=32)
    )
    log = run(scheduler, [request(0, 11, 5), request(1, 11, 5)])
    assert log == ["0:11 1:11", "0:1 1:1", "0:1 !1", "0:1", "0:1 .0", "1:1", "1:1", "1:1 .1"]
    assert (scheduler.num_preemptions, scheduler.num_recomputed_tokens) == (1, 0)
    without = VllmScheduler(pool(8), config(max_num_batched_tokens=32))
    run(without, [request(0, 11, 5), request(1, 11, 5)])
    assert without.num_recomputed_tokens == 12


def test_asynchronous_requests_never_run_past_their_end() -> None:
    scheduler = VllmScheduler(pool(50), config(async_scheduling=True))
    scheduler.add(request(0, 4, 3))
    plans = [scheduler.schedule(0.0)]
    sampled = []
    while scheduler.has_work:
        plans.append(scheduler.schedule(0.0))
        sampled.append([r.request_id for r in scheduler.complete(plans.pop(0), 0.0).sampled])
    assert sampled == [[0], [0], [0]]


def test_queues() -> None:
    requests = [request(0, 1, 1, priority=1), request(1, 1, 1), request(2, 1, 1, priority=1)]
    fcfs = VllmScheduler(pool(50), config())
    for r in requests:
        fcfs.waiting.append(r)
    fcfs.waiting.push_front(fcfs.waiting.pop())
    assert [r.request_id for r in fcfs.waiting] == [0, 1, 2]
    fcfs.waiting.remove(requests[1])
    assert [r.request_id for r in fcfs.waiting] == [0, 2]
    fcfs.waiting.push_front(request(3, 1, 1))
    assert fcfs.waiting.head().request_id == 3
    urgent = [request(0, 1, 1, priority=1), request(1, 1, 1), request(2, 1, 1, priority=1)]
    priority = VllmScheduler(pool(50), config(policy="priority"))
    for r in urgent:
        priority.add(r)
    waiting = priority.waiting
    assert [r.request_id for r in waiting] == [1, 0, 2]
    waiting.remove(urgent[0])
    assert (waiting.pop().request_id, waiting.head().request_id, len(waiting)) == (1, 2, 1)


@pytest.mark.long
@examples(100)
@given(st.data())
def test_the_priority_queue_is_always_sorted(data: st.DataObject) -> None:
    """The heap against a sorted list, requests taken out from anywhere."""
    scheduler = VllmScheduler(pool(50), config(policy="priority"))
    model: list[Request] = []
    ranks = text_ranks(map(str, range(12))).tolist()
    for index in range(data.draw(st.integers(1, 12))):
        one = request(index, 1, 1, priority=data.draw(st.integers(0, 2)))
        one.arrival_time = data.draw(st.sampled_from([0.0, 1.0]))
        one.id_rank = ranks[index]
        scheduler.add(one)
        model.append(one)
        model.sort(key=lambda r: (r.priority, r.arrival_time, str(r.request_id)))
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(model))
            scheduler.waiting.remove(gone)
            model.remove(gone)
        assert list(scheduler.waiting) == model
    while model:
        assert scheduler.waiting.pop() is model.pop(0)


@pytest.mark.parametrize("scheduler", [VllmScheduler, OrcaScheduler, StaticScheduler])
def test_contiguous_memory_under_every_scheduler(scheduler: type[Scheduler]) -> None:
    layout = KVLayout((LayerKV("full", None, 1),), KV_DTYPES["bf16"], 0)
    kv = ContiguousOracle(KVCacheConfig(layout, 32, 4, 64))
    requests = [request(i, 5 + i, 3) for i in range(5)]
    run(scheduler(kv, config()), requests)
    assert all(r.status == Status.FINISHED for r in requests)
    assert kv.usage.unallocated == kv.total_bytes
    kv.check_integrity()


def test_a_victim_at_the_head_has_not_been_refused():
    # Three requests in six blocks: C is refused, then B is preempted and stands before it.
    trace = Trace.from_arrays([0.0, 0.0, 0.05], [30, 30, 60], [40, 40, 4])
    result = kvsim.simulate(
        trace,
        model="llama-3-8b",
        gpu="a100-80gb",
        num_gpu_blocks_override=7,
        max_model_len=128,
        cost_model="constant+seconds=0.1",
        async_scheduling=False,
        enable_prefix_caching=False,
    )
    memory = result.memory
    first = int(np.flatnonzero(np.diff(memory["num_waiting"]) > 0)[-1]) + 1
    assert memory["num_running"][first] == 1
    assert memory["free"][first] > 0
    assert memory["external"][first] == 0


# -- vllm-v0 --------------------------------------------------------------------------------------


def test_v0_computes_prompts_in_steps_of_their_own() -> None:
    log = run(VllmV0Scheduler(pool(50), config()), [request(0, 10, 3), request(1, 20, 2)])
    # The budget of 16 holds one prompt; decodes wait while a prompt can be admitted.
    assert log[:1] == ["0:10"]
    assert run(
        VllmV0Scheduler(pool(50), config(max_num_batched_tokens=64)),
        [request(0, 10, 3), request(1, 20, 2)],
    ) == ["0:10 1:20", "0:1 1:1 .1", "0:1 .0"]


def test_v0_recomputes_prompt_and_output_at_once() -> None:
    log = run(VllmV0Scheduler(pool(6), config()), [request(0, 7, 5), request(1, 7, 5)])
    assert log == [
        "0:7 1:7",
        "0:1 1:1",
        "0:1 !1",  # one block left, then none for the second
        "0:1",
        "0:1 .0",
        "1:9",
        "1:1",
        "1:1 .1",
    ]


def test_v0_swaps_and_goes_on_where_it_was() -> None:
    kv = pool(6, num_cpu_blocks=2)
    scheduler = VllmV0Scheduler(kv, config(preemption_mode="swap"))
    log = run(scheduler, [request(0, 7, 5), request(1, 7, 5)])
    # Back with its 8 tokens computed: nothing is recomputed.
    assert log == ["0:7 1:7", "0:1 1:1", "0:1 !1", "0:1", "0:1 .0", "1:1", "1:1", "1:1 .1"]
    assert scheduler.num_recomputed_tokens == 0


def test_v0_recomputes_when_the_host_is_full() -> None:
    kv = pool(6, num_cpu_blocks=1)
    scheduler = VllmV0Scheduler(kv, config(preemption_mode="swap"))
    log = run(scheduler, [request(0, 7, 5), request(1, 7, 5)])
    assert "1:9" in log
    assert scheduler.num_recomputed_tokens == 8


def test_v0_admits_nobody_while_someone_is_swapped_out() -> None:
    scheduler = VllmV0Scheduler(pool(6, num_cpu_blocks=2), config(preemption_mode="swap"))
    log = []
    for arrival in ([request(0, 7, 5), request(1, 7, 5)], [], [], [request(2, 2, 1)]):
        for one in arrival:
            scheduler.add(one)
        plan = scheduler.schedule(0.0)
        scheduler.complete(plan, 0.0)
        log.append([r.request_id for r in plan.requests])
    # 2 would fit, but 1 is swapped out since the third step.
    assert log == [[0, 1], [0, 1], [0], [0]]
    assert len(scheduler.waiting) == 1
    assert scheduler.num_waiting == 2


@pytest.mark.long
def test_v0_swapping_takes_the_links_time_and_keeps_tokens() -> None:
    trace = Trace.from_arrays([0.0] * 8, [200] * 8, [200] * 8)
    options = {
        "model": "llama-3-8b",
        "gpu": "a100-80gb",
        "scheduler": "vllm-v0",
        "num_gpu_blocks_override": 120,
        "max_model_len": 512,
        "check_invariants": True,
        "record_steps": True,
    }
    swap = kvsim.simulate(trace, preemption_mode="swap", **options).summary
    again = kvsim.simulate(trace, **options).summary
    assert swap["num_preemptions"] > 0
    assert swap["num_recomputed_tokens"] == 0 < again["num_recomputed_tokens"]
    assert swap["total_output_tokens"] == again["total_output_tokens"] == 1600


def test_v0_leaves_one_percent_free_and_needs_room_for_a_prompt() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        kvsim.simulate(
            Trace.from_arrays([0.0], [5], [5]), scheduler="vllm-v0", max_num_batched_tokens=1024
        )
    with pytest.raises(ValueError, match="pipeline_parallel_size"):
        kvsim.simulate(
            Trace.from_arrays([0.0], [5], [5]), scheduler="vllm-v0", pipeline_parallel_size=2
        )
    with pytest.raises(ValueError, match="preemption_mode"):
        kvsim.simulate(Trace.from_arrays([0.0], [5], [5]), preemption_mode="swap")
    # 10 of 1001 blocks stay free: 61 prompts of 16 blocks and not 62.
    trace = Trace.from_arrays([0.0] * 70, [256] * 70, [1] * 70)
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "num_gpu_blocks_override": 1001}
    v0 = kvsim.simulate(
        trace, scheduler="vllm-v0", max_num_batched_tokens=70 * 256, max_model_len=1024, **options
    )
    first = v0.requests["first_scheduled_time"] == v0.requests["first_scheduled_time"][0]
    assert first.sum() == 61


def test_the_swap_modifier_is_vllm_v0_that_swaps() -> None:
    trace = workloads.fixed(prompt=100, output=200, num_requests=12, request_rate=math.inf)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "num_gpu_blocks_override": 100}
    named = kvsim.simulate(trace, allocator="paged+swap", **options)
    flags = kvsim.simulate(trace, scheduler="vllm-v0", preemption_mode="swap", **options)
    assert equal_tables(named.requests, flags.requests)
    assert named.summary == flags.summary
    assert named.summary["num_preemptions"] > 0 == named.summary["num_recomputed_tokens"]
    for allocator, message in (
        ("contiguous-max+swap", "cannot be swapped"),
        ("paged+swap=1", "takes no value"),
        ("paged+swap+swap", "given twice"),
    ):
        with pytest.raises(ValueError, match=message):
            kvsim.simulate(trace, allocator=allocator, **options)
    with pytest.raises(ValueError, match="'vllm' cannot swap"):
        kvsim.simulate(trace, allocator="paged+swap", scheduler="vllm", **options)


def test_an_admission_whose_prompt_is_cached_carries_no_prefill() -> None:
    """Held back or not, one token more is a decode: the interval counts on."""
    scheduler = VllmScheduler(
        pool(60, block_size=1, enable_prefix_caching=True), config(features=(PrefillInterval(3),))
    )
    same = [(1, 0, 8)]
    first, again = Request(0, 0.0, 8, 20, same, 1000), Request(1, 1.0, 8, 20, same, 1001)
    scheduler.add(first)
    scheduler.complete(scheduler.schedule(0.0), 0.0)
    interval = scheduler.state.features[0].python
    assert (interval.num_executed, interval.last_prefill) == (1, 1)
    scheduler.add(again)
    plan = scheduler.schedule(0.0)  # two steps too early for a prompt
    assert plan.num_tokens == [1, 1]
    assert interval.last_prefill == 1


def test_an_empty_step_does_not_bring_prefill_nearer() -> None:
    scheduler = VllmScheduler(pool(60), config(features=(PrefillInterval(3),)))
    for _ in range(3):
        scheduler.schedule(0.0)
    assert scheduler.state.features[0].python.num_executed == 0


# -- by hand --------------------------------------------------------------------------------------


class ByHand(OrcaScheduler):
    """Orca's steps, written with what schedulers of one's own are made of."""

    def schedule(self, now: float) -> StepPlan:
        plan = self.begin()
        self.state.clock = now
        self.grow_running(plan)
        while len(self.waiting) and not plan.preempted:
            head = next(iter(self.waiting))
            num_tokens = head.num_tokens
            if self.num_running_seqs == self.config.max_num_seqs:
                break
            if not self.kv.allocate_slots(head, num_tokens):
                break
            self.admit(plan, head, num_tokens, NO_HIT)
        return plan.close()


@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
def test_a_scheduler_by_hand_decides_what_the_rules_decide(max_num_seqs: int) -> None:
    logs = []
    for kind in (OrcaScheduler, ByHand):
        kv = ContiguousOracle(kv_config(13, max_model_len=64, reserve_output=True))
        scheduler = kind(kv, config(max_num_seqs=max_num_seqs))
        logs.append(run(scheduler, [request(i, 5 + i, 3 + 2 * i) for i in range(4)]))
        assert scheduler.num_preemptions == 0
    assert logs[0] == logs[1]
    assert logs[0][-1].endswith(".3")


def test_a_dropped_step_of_a_preempted_request_has_computed_nothing_again() -> None:
    scheduler = VllmScheduler(pool(50), config())
    one = request(0, 8, 4)
    scheduler.add(one)
    scheduler.complete(scheduler.schedule(0.0), 0.0)
    scheduler.preempt(scheduler.begin(), one)
    plan = scheduler.schedule(0.0)
    assert plan.num_tokens == [9]  # the prompt and its first token
    assert scheduler.num_recomputed_tokens == 8
    scheduler.preempt(plan, one)
    assert plan.requests == []
    assert scheduler.num_recomputed_tokens == 0


def test_a_plan_says_who_gets_no_token_from_it() -> None:
    scheduler = VllmScheduler(pool(50), config())
    for one in (request(0, 10, 3), request(1, 20, 2)):
        scheduler.add(one)
    plan = scheduler.schedule(0.0)
    assert plan.num_tokens == [10, 6]
    assert plan.unfinished == {1}
    assert not plan.has_samples
    more = scheduler.begin()
    more.add(plan.requests[1], 3)
    assert (more.num_tokens, more.ends, more.unfinished) == ([3], [9], {1})


def test_refused_allocations_are_counted() -> None:
    scheduler = VllmScheduler(pool(5), config())
    run(scheduler, [request(0, 8, 3), request(1, 12, 1)])
    assert scheduler.num_allocation_failures > 0
    roomy = VllmScheduler(pool(50), config())
    run(roomy, [request(0, 8, 3), request(1, 12, 1)])
    assert roomy.num_allocation_failures == 0


class WithoutBegin(VllmScheduler):
    """A user's scheduler that makes its plan itself."""

    def schedule(self, now: float) -> StepPlan:
        return StepPlan.of([])


def test_a_plan_that_was_not_begun_is_refused() -> None:
    trace = Trace.from_arrays([0.0], [10], [5])
    with pytest.raises(RuntimeError, match=r"WithoutBegin\.schedule must begin its plan"):
        kvsim.simulate(trace, scheduler=f"{__name__}:WithoutBegin", num_gpu_blocks_override=600)


# -- parameters of a scheduler of one's own ------------------------------------------------------


class Patient(VllmScheduler):
    """As vLLM's, with numbers of its own."""

    def __init__(self, kv, config, *, every: int = 1, offset: float = 0.0) -> None:
        super().__init__(kv, config)
        self.every, self.offset = every, offset


def patient(kv, config, *, every: int = 2) -> Patient:
    """Make the same by a function."""
    made.append(every)
    return Patient(kv, config, every=every)


made: list[int] = []


@pytest.mark.long
@pytest.mark.parametrize("name", ["test_schedulers:Patient", "test_schedulers:patient"])
def test_a_scheduler_takes_typed_parameters(name):
    made.clear()
    config = Config(
        model="opt-125m", gpu="a100-80gb", scheduler=f"{name}+every=3", backend="python"
    )
    setup = resolve(config)
    assert setup.make_scheduler().every == 3
    assert made == [3] * len(made)
    trace = workloads.fixed(num_requests=2)
    result = kvsim.simulate(trace, model="opt-125m", gpu="a100-80gb", scheduler=f"{name}+every=3")
    assert (result.requests["finish_time"] > 0).tolist() == [True, True]


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [
        ("test_schedulers:Patient+every=many", "scheduler 'test_schedulers:Patient': every=many: "),
        ("test_schedulers:Patient+each=3", "has no parameter 'each' (its parameters: every, offse"),
        ("vllm+ageing=5", "scheduler 'vllm' has no parameter 'ageing' (its parameters: none)"),
        ("vllm+", "'' must be KEY or KEY=VALUE"),
        ("nobody+x=1", "unknown scheduler 'nobody'"),
    ],
)
def test_wrong_parameters_of_a_scheduler_are_one_line(scheduler, told):
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the message is checked below
        resolve(Config(model="opt-125m", gpu="a100-80gb", scheduler=scheduler))
    assert told in str(raised.value)
