"""KV that grows by concatenation: closed forms, hand-worked growth, a literal oracle, pressure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from driving import compute, request
from hypothesis import given
from hypothesis import strategies as st
from strategies import examples, under_pressure

import kvsim
import workloads
from kvsim.budget.layout import KV_DTYPES, KVLayout, LayerKV
from kvsim.engines.baselines.sched.schedulers import OrcaScheduler
from kvsim.kv.caching_allocator import MIB, CachingAllocator
from kvsim.kv.dynamic import DynamicManager, sample_layers
from kvsim.kv.manager import KVCacheConfig
from kvsim.kv.usage import Cause
from kvsim.records.request import Request
from kvsim.sched.scheduler import SchedulerConfig
from kvsim.testing import check_result
from kvsim.trace import Trace

KIB = 1024


def layout(num_layers: int, token_bytes: int, window: int | None = None) -> KVLayout:
    """Return layers with keys and values of ``token_bytes`` each."""
    kind: Any = "full" if window is None else "sliding"
    return KVLayout((LayerKV(kind, window, 2 * token_bytes),) * num_layers, KV_DTYPES["bf16"], 0)


def manager(layers: KVLayout, num_bytes: int, **options: Any) -> DynamicManager:
    return DynamicManager(KVCacheConfig(layers, num_bytes, 16, 4096, **options))


# -- closed forms ---------------------------------------------------------------------------------


def test_bytes_of_one_request() -> None:
    """100 tokens of 1,000 bytes: each tensor of 100,000 bytes counts as 196 x 512 of them."""
    kv = manager(layout(3, 1000), 64 * MIB)
    r = request(0, 100, 5)
    assert compute(kv, r, 100)
    asked, held = 6 * 100_000, 6 * 196 * 512
    assert kv.usage == (asked, 0, 0, held - asked, 64 * MIB - held, 0)
    assert kv.heap_bytes == (held, 2 * MIB)
    kv.retire(r)
    assert kv.usage[:4] == (0, 0, asked, held - asked)
    kv.free(r)
    assert kv.usage == (0, 0, 0, 0, 64 * MIB, 0)
    assert kv.heap_bytes == (0, 2 * MIB)  # the segment stays reserved


def test_growth_goes_a_tensor_at_a_time() -> None:
    """Four tensors of 3 MiB in 20 MiB; each new one is 4 MiB. Worked by hand.

    K0 goes behind the four, at 12; its old place at 0 is too small for V0, which goes to 16. The
    holes of K0 and V0 merge to 6 MiB: K1 at 0. The rest of them and K1's own hole: V1 at 4.
    """
    kv = manager(layout(2, MIB), 20 * MIB)
    r = request(0, 3, 2)
    compute(kv, r, 3)
    assert addresses(kv, r) == [0, 3, 6, 9]
    compute(kv, r, 1)
    assert addresses(kv, r) == [12, 16, 0, 4]
    assert kv.heap.reserved == 20 * MIB
    assert kv.usage.token_states == 16 * MIB


def addresses(kv: DynamicManager, r: Request) -> list[int]:
    return [block.address // MIB for block in kv._tensors[r.request_id].blocks]


def test_concatenating_needs_the_old_and_the_new_tensor_at_once() -> None:
    """Two tensors of 5 MiB each fit into 20 MiB as four do, but not beside a fifth."""
    five = request(0, 4, 1)  # 5 tokens of 1 MiB at its longest
    assert not manager(layout(2, MIB), 20 * MIB).fits(five)
    assert manager(layout(2, MIB), 40 * MIB).fits(five)
    kv = manager(layout(2, MIB), 20 * MIB)
    r = request(0, 4, 9)
    compute(kv, r, 4)
    before = (kv.usage, picture(kv.heap))
    assert not compute(kv, r, 1)
    assert (kv.usage, picture(kv.heap)) == before


def picture(heap: CachingAllocator) -> list[Any]:
    return [[(b.address, b.size, b.allocated) for b in blocks] for blocks in heap.segments()]


def test_who_is_alone_begins_with_an_empty_cache() -> None:
    """A free segment of 20 MiB takes one tensor of 12; a second one has no room beside it."""
    kv = manager(layout(1, MIB), 30 * MIB)
    first = request(0, 2, 4)
    compute(kv, first, 2)
    kv.free(first)
    assert kv.heap_bytes == (0, 20 * MIB)
    assert compute(kv, request(1, 12, 4), 12)
    assert kv.heap.reserved == 24 * MIB


def test_who_comes_back_from_the_host_gets_on() -> None:
    """A swapped-in request has room for its next token, where concatenating would find none."""
    kv = manager(layout(2, MIB), 20 * MIB, swap_space_bytes=16 * MIB)
    r = request(0, 4, 2)
    compute(kv, r, 4)
    r.num_tokens = 5
    assert not compute(kv, r, 1)
    assert kv.swap_out(r) == 16 * MIB
    assert kv.usage.unallocated == 20 * MIB
    assert kv.swap_in(r) == 16 * MIB
    assert compute(kv, r, 1)
    small = manager(layout(2, MIB), 20 * MIB, swap_space_bytes=15 * MIB)
    other = request(1, 4, 2)
    compute(small, other, 4)
    assert small.swap_out(other) == 0


def test_a_refused_admission_changes_nothing() -> None:
    kv = manager(layout(2, MIB), 40 * MIB)
    compute(kv, request(0, 4, 4), 4)
    before = (kv.usage, picture(kv.heap), kv.heap.reserved)
    assert not compute(kv, request(1, 6, 4), 6)  # 24 MiB in all, in pieces of 20
    assert (kv.usage, picture(kv.heap), kv.heap.reserved) == before


def test_known_tokens_get_room_at_once() -> None:
    """A prompt computed in chunks has its tensors from the start: asked for, used later."""
    kv = manager(layout(1, 512), 64 * MIB)
    r = request(0, 100, 5)
    compute(kv, r, 30)
    assert kv.usage[:3] == (2 * 30 * 512, 2 * 70 * 512, 0)
    compute(kv, r, 70)
    assert kv.usage[:3] == (2 * 100 * 512, 0, 0)


def test_a_window_caps_memory_exactly() -> None:
    kv = manager(layout(4, 512, window=16), 64 * MIB)
    r = request(0, 100, 50)
    compute(kv, r, 100)
    for _ in range(49):
        compute(kv, r, 1)
        assert kv.usage[:4] == (8 * 16 * 512, 0, 0, 0)


def test_latents_are_one_tensor_per_layer() -> None:
    latent = KVLayout((LayerKV("full", None, 1152, 1),) * 3, KV_DTYPES["bf16"], 0)
    kv = manager(latent, 64 * MIB)
    assert [shape.token_bytes for shape in kv.shapes] == [1152] * 3


@given(st.integers(1, 6), st.sampled_from([1, 700, 2048, 40_000, MIB]), st.integers(0, 200))
def test_what_fits_fits_when_shorter(num_layers: int, token_bytes: int, num_mib: int) -> None:
    kv = manager(layout(num_layers, token_bytes), num_mib * MIB)
    longest = kv._longest
    assert longest == 0 or kv._holds(longest)
    for tokens in {1, longest // 3, longest // 2, longest - 1} - {-1, 0}:
        assert tokens > longest or kv._holds(tokens)
    if longest < 4096:
        assert not kv._holds(longest + 1)


# -- a literal simulation -------------------------------------------------------------------------


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), min_size=1, max_size=60),
    st.sampled_from([3000, 40_000, 300_000]),
    st.integers(30, 120),
)
def test_growth_is_what_pytorch_would_do(
    calls: list[tuple[int, int]], token_bytes: int, num_mib: int
) -> None:
    """What succeeded, tensor by tensor on a second heap, leaves the same blocks behind.

    So a call that runs out of memory half-way leaves no trace.
    """
    kv = manager(layout(3, token_bytes), num_mib * MIB)
    requests: dict[int, Request] = {}
    history: list[tuple[str, int, int]] = []  # what succeeded
    for index, tokens in calls:
        if index not in requests:
            r = request(index, tokens, 500)
            if compute(kv, r, tokens):
                requests[index] = r
                history.append(("make", index, tokens))
        elif tokens % 5 == 0:
            kv.free(requests.pop(index))
            history.append(("end", index, 0))
        else:
            r = requests[index]
            if compute(kv, r, tokens):
                history.append(("grow", index, r.num_computed_tokens))
    heap, tensors = CachingAllocator(num_mib * MIB), {}
    for what, index, tokens in history:
        if what == "make":
            made = [heap.malloc(tokens * token_bytes) for _ in range(6)]
            if None in made:  # nobody was there: begin with an empty cache
                for tensor in made:
                    if tensor is not None:
                        heap.free(tensor)
                heap.empty_cache()
                made = [heap.malloc(tokens * token_bytes) for _ in range(6)]
            tensors[index] = made
        elif what == "grow":
            for i in range(6):
                new = heap.malloc(tokens * token_bytes)
                heap.free(tensors[index][i])
                tensors[index][i] = new
        else:
            for tensor in tensors.pop(index):
                heap.free(tensor)
    assert shape(heap) == shape(kv.heap)
    live = sum(r.num_computed_tokens for r in requests.values())
    assert kv.usage.token_states == 6 * token_bytes * live


def shape(heap: CachingAllocator) -> list[Any]:
    """Sizes of all blocks in order; segments may have other addresses after an empty cache."""
    return [[(block.size, block.allocated) for block in blocks] for blocks in heap.segments()]


# -- a sample of the layers -----------------------------------------------------------------------


def test_every_kind_of_layer_is_in_its_share() -> None:
    full, sliding = LayerKV("full", None, 64), LayerKV("sliding", 8, 64)
    hybrid = KVLayout((sliding, sliding, full) * 4, KV_DTYPES["bf16"], 0)
    sample, whole = sample_layers(hybrid, 1 << 40, None)
    assert (sample, whole) == ([sliding, sliding, full], 12)
    assert len(sample_layers(hybrid, 1 << 20, None)[0]) == 12  # a small memory: all of them
    assert len(sample_layers(hybrid, 1 << 40, 6)[0]) == 6
    for layers in (2, 15):
        with pytest.raises(ValueError, match="multiple of 3"):
            sample_layers(hybrid, 1 << 40, layers)


@pytest.mark.long
def test_a_sample_is_as_all_layers_are() -> None:
    """The same run with 10 of 40 layers and with all: rates within 8 %, fragmentation near."""
    trace = workloads.sharegpt(num_requests=20, request_rate=20, seed=0)
    runs = [
        kvsim.simulate(
            trace,
            model="opt-13b",
            gpu="a100-40gb",
            max_model_len=2048,
            kv_cache_memory_bytes=4 << 30,
            allocator=f"dynamic+layers={layers}",
        ).summary
        for layers in (10, 40)
    ]
    sample, whole = runs
    assert sample["output_throughput"] == pytest.approx(whole["output_throughput"], rel=0.08)
    assert sample["mean_running"] == pytest.approx(whole["mean_running"], rel=0.08)
    ours, theirs = (run["kv_cache"]["fragmentation"] for run in runs)
    assert ours == pytest.approx(theirs, abs=0.06)
    assert sample["kv_cache"]["bytes"] == whole["kv_cache"]["bytes"]


# -- whole runs -----------------------------------------------------------------------------------


@pytest.mark.long
def test_fragmentation_is_reported_where_there_is_a_heap() -> None:
    trace = workloads.sharegpt(num_requests=20, request_rate=20, seed=0)
    runs = kvsim.compare(trace, ["dynamic", "paged"], model="gpt2", gpu="l4")
    dynamic, paged = (row["kv_cache"] for row in runs.rows)
    assert 0 < dynamic["fragmentation"] < 1
    assert paged["fragmentation"] is None


def test_a_request_that_can_never_fit_is_rejected() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [10, 900], [5, 100])
    options = {"model": "gpt2", "gpu": "l4", "kv_cache_memory_bytes": 22 * MIB}
    result = kvsim.simulate(trace, allocator="dynamic", check_invariants=True, **options)
    assert result.summary["rejections"] == {"needs more KV memory than there is": 1}
    assert result.summary["completed"] == 1


def test_who_cannot_grow_preempts_the_latest_until_somebody_ends() -> None:
    """Three prompts fill the memory; growth preempts the third, which comes back when one ends."""
    trace = Trace.from_arrays([0.0, 0.0, 0.0], [150, 150, 150], [100, 200, 100])
    result = kvsim.simulate(
        trace,
        model="gpt2",
        gpu="l4",
        allocator="dynamic",
        kv_cache_memory_bytes=20 * MIB,
        check_invariants=True,
        record_steps=True,
    )
    check_result(result)
    preempted = result.requests["num_preemptions"].tolist()
    assert preempted[0] == 0
    assert 0 < preempted[2] <= 2
    assert result.summary["completed"] == 3
    assert result.steps["num_running"].max() == 3


@pytest.mark.parametrize(
    ("scheduler", "prompts", "outputs"),
    [("orca", [1], [46]), ("static", [15, 11], [6, 26])],
)
def test_who_preempts_itself_comes_back(
    scheduler: str, prompts: list[int], outputs: list[int]
) -> None:
    """Alone, but for an ended request of its batch, in 4 MiB: holes stop it, not its length."""
    trace = Trace.from_arrays([0.0] * len(prompts), prompts, outputs)
    result = kvsim.simulate(
        trace,
        model="gpt2",
        gpu="l4",
        allocator="dynamic",
        scheduler=scheduler,
        kv_cache_memory_bytes=4 * MIB,
        check_invariants=True,
    )
    check_result(result)
    assert result.requests["num_preemptions"][-1] > 0
    assert result.summary["completed"] == len(prompts)


def test_nobody_comes_back_while_its_last_step_is_under_way() -> None:
    kv = manager(layout(2, MIB), 20 * MIB)
    scheduler = OrcaScheduler(kv, SchedulerConfig(4096, 8, 8192))
    r = request(0, 2, 2)
    scheduler.add(r)
    r.num_stale_tokens = 1
    assert not scheduler.schedule(0.0).requests
    r.num_stale_tokens = 0
    assert scheduler.schedule(0.0).requests == [r]


def test_several_sequences_are_refused() -> None:
    trace = Trace.from_arrays([0.0], [10], [10])
    for scheduler in ("orca", "vllm-v0"):
        with pytest.raises(ValueError, match="one sequence per request"):
            kvsim.simulate(trace, allocator="dynamic", scheduler=scheduler, num_samples=2)


def test_the_map_shows_what_usage_says() -> None:
    kv = manager(layout(2, MIB), 40 * MIB)
    for index in range(3):
        compute(kv, request(index, 2, 4), 2)
    requests = [state.request for state in kv._tensors.values()]
    kv.free(requests[1])
    kv.retire(requests[2])
    causes = kv.memory_map(1000)
    counted = {cause: int(np.sum(causes == cause)) / 1000 for cause in Cause}
    total = kv.total_bytes
    assert counted[Cause.TOKEN_STATES] == pytest.approx(kv.usage.token_states / total, abs=0.01)
    assert counted[Cause.INTERNAL] == pytest.approx(kv.usage.internal / total, abs=0.01)
    assert counted[Cause.FREE] == pytest.approx(kv.usage.unallocated / total, abs=0.01)


@pytest.mark.long
@examples(120)
@given(under_pressure(["dynamic", "dynamic+window=50", "dynamic+layers=2", "dynamic+int8"]))
def test_nothing_breaks_under_pressure(run: tuple[Trace, dict[str, Any]]) -> None:
    trace, options = run
    result = kvsim.simulate(trace, check_invariants=True, record_steps=True, **options)
    check_result(result)
    assert result.summary["completed"] + result.summary["num_rejected"] == len(trace)
    rejected = result.requests[result.requests["finish_reason"] == 1]
    assert (rejected["num_output_tokens"] == 0).all()
