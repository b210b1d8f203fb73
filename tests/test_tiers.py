"""Host memory behind the GPU: prefix blocks that come back, and KV paged in on demand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from driving import kv_config
from hypothesis import given
from hypothesis import strategies as st

import kvsim
import kvsim.testing
import workloads
from experiments import offload
from kvsim.attention.full import FullAttention
from kvsim.budget.layout import kv_dtype, kv_layout
from kvsim.catalog import get_gpu, get_model
from kvsim.config import Config
from kvsim.cost.host_link import FAULT_SECONDS, init_link
from kvsim.cost.model import CostConfig
from kvsim.engine.setup import resolve
from kvsim.kv.eviction import init_contents
from kvsim.kv.manager import KVCacheConfig, Transfers
from kvsim.kv.tiered import TieredManager
from kvsim.kv.unified import PAGE_BYTES, UnifiedManager
from kvsim.records.contents import NO_CONTENT
from kvsim.records.contents import HostTier as Tier
from kvsim.records.cost import Cost
from kvsim.records.kv import Moved
from kvsim.records.memory import Objects
from kvsim.records.request import Request
from kvsim.rules.blocks.contents import find_content
from kvsim.rules.blocks.host_tier import store
from kvsim.rules.price import copy_time, swap_time, with_transfers
from kvsim.trace import Trace
from tests.strategies import examples, traces

BLOCK = 4  # tokens
SIZE = 1000  # bytes of a block


def memory(num_blocks: int) -> KVCacheConfig:
    return kv_config(num_blocks, FullAttention(BLOCK), slot_bytes=SIZE // BLOCK, max_model_len=1000)


def tiered(num_gpu_blocks: int, num_host_blocks: int) -> TieredManager:
    return TieredManager(memory(num_gpu_blocks), host_gib=num_host_blocks * SIZE / 2**30)


def request(index: int, content: int, num_tokens: int) -> Request:
    return Request(index, 0.0, num_tokens, 1, [(content, 0, num_tokens)], 99 + index)


def serve(kv: TieredManager, one: Request) -> tuple[int, int, int]:
    """Compute a prompt and end; returns tokens hit, then blocks fetched and stored."""
    hit = kv.lookup(one)
    assert kv.allocate_slots(one, one.num_tokens - hit.num_tokens, hit)
    kv.check_integrity()
    moved = kv.take_transfers([one])
    assert kv.take_transfers([one]).fetched == 0  # once only
    kv.free(one)
    kv.check_integrity()
    return hit.num_tokens, moved.fetched // SIZE, moved.stored // SIZE


def test_evicted_blocks_come_back_from_the_host() -> None:
    kv = tiered(num_gpu_blocks=5, num_host_blocks=8)
    assert serve(kv, request(0, 7, 13)) == (0, 0, 0)  # 3 full blocks and one token
    assert serve(kv, request(1, 8, 13)) == (0, 0, 3)  # takes all 4: 3 contents go down
    assert serve(kv, request(2, 7, 13)) == (12, 3, 3)  # they come up, the others go down
    assert serve(kv, request(3, 7, 13)) == (12, 0, 0)  # on the GPU now
    assert serve(kv, request(4, 8, 13)) == (12, 3, 0)  # 7's are in host memory still
    assert kv.num_host_blocks_used == 6


def test_a_hit_goes_on_in_host_memory_where_it_ends_on_the_gpu() -> None:
    kv = tiered(num_gpu_blocks=5, num_host_blocks=8)
    serve(kv, request(0, 7, 13))
    assert serve(kv, request(1, 8, 7)) == (0, 0, 1)  # needs 2: the free one, and 7's last
    assert serve(kv, request(2, 7, 13)) == (12, 1, 1)


def test_what_never_was_on_the_gpu_is_not_fetched_and_a_full_host_forgets_the_oldest() -> None:
    kv = tiered(num_gpu_blocks=5, num_host_blocks=2)
    serve(kv, request(0, 7, 13))
    assert serve(kv, request(1, 9, 13)) == (0, 0, 3)
    # Blocks go down last first, so the host's two are the first two of the prompt.
    assert serve(kv, request(2, 7, 13))[:2] == (8, 2)
    assert serve(kv, request(3, 11, 13))[0] == 0


class HostTier:
    """The rules of host memory, by hand."""

    def __init__(self, num_blocks: int) -> None:
        self.tier = Tier(num_blocks=num_blocks)
        init_contents(Objects(), self.tier.contents, max(num_blocks, 1))

    def store(self, key: int) -> bool:
        """Store a content; whether that takes a copy."""
        before = self.tier.num_stored
        store(self.tier, key)
        return self.tier.num_stored > before

    def pin(self, keys: list[int]) -> None:
        """Pin these contents and no others."""
        for key in range(1, 5):
            place = find_content(self.tier.contents, key)
            if place != NO_CONTENT:
                self.tier.contents.rows[place].pinned = int(key in keys)

    def __contains__(self, key: int) -> bool:
        return find_content(self.tier.contents, key) != NO_CONTENT


class HostLink:
    """The rules of the link between GPU and host, by hand."""

    def __init__(self, config: CostConfig) -> None:
        self.record = Cost()
        init_link(self.record, config)

    def step_seconds(self, time: float, transfers: Transfers) -> float:
        return with_transfers(self.record, time, Moved(*transfers))

    def swap_seconds(self, num_bytes: int) -> float:
        return swap_time(self.record, num_bytes)

    def copy_seconds(self, num_bytes: int) -> float:
        return copy_time(self.record, num_bytes)


def test_contents_about_to_be_read_are_not_pushed_out() -> None:
    tier = HostTier(2)
    assert tier.store(1)
    assert tier.store(2)
    assert not tier.store(1)  # used once more
    tier.pin([1])
    assert tier.store(3)  # 2 leaves
    assert 1 in tier
    tier.pin([1, 3])
    assert not tier.store(4)
    tier.pin([])
    assert tier.store(4)
    assert 1 not in tier
    assert HostTier(0).store(1) is False


def test_the_last_token_is_always_computed() -> None:
    kv = tiered(num_gpu_blocks=5, num_host_blocks=8)
    serve(kv, request(0, 7, 12))
    serve(kv, request(1, 8, 13))
    assert serve(kv, request(2, 7, 12))[:2] == (8, 2)


def test_what_was_evicted_again_leaves_the_host_last() -> None:
    kv = tiered(num_gpu_blocks=3, num_host_blocks=2)
    for content in (1, 2, 3):
        serve(kv, request(content, content, 5))  # a block of content, a token
    assert serve(kv, request(4, 1, 5)) == (4, 1, 1)  # 1 comes up, 3 goes down, 2 leaves
    assert serve(kv, request(5, 4, 5)) == (0, 0, 0)  # 1 goes down: no copy, but new again
    assert serve(kv, request(6, 5, 5)) == (0, 0, 1)  # 4 goes down, 3 leaves
    assert serve(kv, request(7, 1, 5))[:2] == (4, 1)


def test_a_content_goes_down_with_its_last_copy() -> None:
    kv = tiered(num_gpu_blocks=7, num_host_blocks=8)
    twins = [request(0, 7, 8), request(1, 7, 8)]
    for one in twins:  # both compute it, at the same time
        assert kv.allocate_slots(one, 8)
    for one in twins:
        kv.free(one)
    assert serve(kv, request(2, 8, 15)) == (0, 0, 0)  # 4 blocks: 2 free ones, and one of each twin
    assert serve(kv, request(3, 9, 23)) == (0, 0, 2 + 3)


def test_seconds_of_copies_and_faults() -> None:
    config = CostConfig(
        get_model("llama-3-8b"),
        get_gpu("h100-sxm"),
        kv_layout(get_model("llama-3-8b"), kv_dtype("bf16")),
        block_size=16,
    )
    link, rate = HostLink(config), get_gpu("h100-sxm").pcie_bytes_per_s
    block = 16 * 131_072
    assert link.step_seconds(1.0, Transfers()) == 1.0
    assert link.step_seconds(1.0, Transfers(fetched=block)) == 1.0  # under the computation
    launches = 64e-5  # one per tensor of a layer, however many blocks
    fetching = Transfers(fetched=3 * block, stored=block)
    assert link.step_seconds(0.0, fetching) == pytest.approx(3 * block / rate + launches)
    stored = link.step_seconds(0.0, Transfers(stored=2 * block))
    assert stored == pytest.approx(2 * block / rate + launches)
    assert link.swap_seconds(2 * block) == pytest.approx(2 * block / rate)
    pieces = HostLink(replace(config, piece_bytes=block))
    assert pieces.swap_seconds(2 * block) == pytest.approx(2 * block / rate + 2 * launches)
    faults = Transfers(paged_in=block, paged_out=3 * block, num_faults=5)
    assert link.step_seconds(1.0, faults) == pytest.approx(1 + 5 * 3e-5 + 3 * block / rate)


@pytest.mark.long
@examples(50)
@given(traces(max_requests=10))
def test_with_room_enough_no_content_is_ever_lost(trace: Trace) -> None:
    """One after another, requests hit all that any before them has computed."""
    apart = Trace.from_arrays(
        [100.0 * i for i in range(len(trace))],
        trace.num_prompt_tokens,
        trace.num_output_tokens,
        segments=[trace.segments_of(i) for i in range(len(trace))],
        output_content_id=trace.output_content_id,
    )
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "block_size": 4, "max_model_len": 128}
    small = kvsim.simulate(
        apart,
        allocator="tiered+host-gib=0.25",
        num_gpu_blocks_override=33,
        check_invariants=True,
        **options,
    )
    large = kvsim.simulate(apart, num_gpu_blocks_override=500, **options)
    assert (small.requests["num_cached_tokens"] == large.requests["num_cached_tokens"]).all()


def test_copies_take_their_time_and_no_more_than_the_link_has() -> None:
    """Long prompts in turn over a GPU that holds one of them."""
    num_tokens, rounds = 16_001, 4
    segments = [[(i % 2, 0, num_tokens)] for i in range(2 * rounds)]
    trace = Trace.from_arrays(
        np.arange(2.0 * rounds) * 20.0,
        [num_tokens] * 2 * rounds,
        [1] * 2 * rounds,
        segments=segments,
    )
    options = {"model": "llama-3-8b", "gpu": "a100-80gb", "num_gpu_blocks_override": 1002}
    options |= {"max_model_len": 16_100, "max_num_batched_tokens": 20_000}
    plain = kvsim.simulate(trace, **options)
    result = kvsim.simulate(trace, allocator="tiered+host-gib=8", **options)
    assert plain.summary["prefix_cache_hit_rate"] == 0
    fetched = result.summary["kv_cache"]["fetched_bytes"]
    hits = result.requests["num_cached_tokens"]
    assert hits.tolist() == [0, 0, *[16_000] * (2 * rounds - 2)]
    assert fetched == int(hits.sum()) * 131_072
    link = get_gpu("a100-80gb").pcie_bytes_per_s
    ttft = result.requests["first_token_time"] - result.requests["arrival_time"]
    copying = 1000 * 2_097_152 / link + 64 * 1e-5
    assert ttft[2:] == pytest.approx(copying, rel=1e-6)  # the copy is what takes longest
    assert fetched / ttft.sum() < link
    assert ttft[2:].max() < plain.summary["mean_ttft_ms"] / 1e3
    assert plain.summary["kv_cache"]["fetched_bytes"] == 0


def test_preempted_requests_come_back_from_the_host() -> None:
    trace = workloads.fixed(prompt=200, output=300, num_requests=20, request_rate=math.inf)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "num_gpu_blocks_override": 200}
    plain = kvsim.simulate(trace, **options).summary
    tier = kvsim.simulate(trace, allocator="tiered", **options).summary
    assert plain["num_preemptions"] > 0
    assert tier["num_recomputed_tokens"] < plain["num_recomputed_tokens"] / 4


@pytest.mark.long
def test_vllms_flag_makes_paged_tiered() -> None:
    trace = workloads.fixed(prompt=200, output=300, num_requests=20, request_rate=math.inf)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "num_gpu_blocks_override": 400}
    options["tensor_parallel_size"] = 2
    flag = kvsim.simulate(trace, kv_offloading_size=2.0, **options)
    name = kvsim.simulate(trace, allocator="tiered+host-gib=1", **options)
    assert kvsim.testing.equal_tables(flag.requests, name.requests)
    assert flag.summary == name.summary
    for off in ({"enable_prefix_caching": False}, {"scheduler": "vllm-v0"}):
        with pytest.raises(ValueError, match="needs enable_prefix_caching, which is off"):
            kvsim.simulate(trace, kv_offloading_size=2.0, **off, **options)
    with pytest.raises(ValueError, match=r"give tiered\+host-gib"):
        kvsim.record(trace, kv_offloading_size=2.0, **options)
    with pytest.raises(ValueError, match="has no blocks to offload"):
        kvsim.simulate(trace, kv_offloading_size=2.0, allocator="contiguous-max", **options)


# -- unified memory --------------------------------------------------------------------------------


def unified(num_blocks: int, num_resident: int) -> UnifiedManager:
    on_host = num_blocks - num_resident
    return UnifiedManager(memory(num_resident), host_gib=on_host * SIZE / 2**30)


def test_what_fits_faults_once_and_what_does_not_faults_in_every_step() -> None:
    kv = unified(num_blocks=13, num_resident=6)
    first, second = request(0, 7, 12), request(1, 8, 16)
    for one in (first, second):
        assert kv.allocate_slots(one, one.num_tokens)
    assert kv.take_transfers([first]) == (0, 0, 0, 0, 3)  # touched for the first time
    assert kv.take_transfers([first]) == (0, 0, 0, 0, 0)
    assert kv.take_transfers([second]) == (0, 0, 0, SIZE, 4)
    for _ in range(3):  # 7 blocks in turn over 6: the next one has always just left
        assert kv.take_transfers([first, second]) == (0, 0, 7 * SIZE, 7 * SIZE, 7)
    kv.check_integrity()


@pytest.mark.long
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=20), st.integers(1, 12)
)
def test_nothing_comes_in_that_did_not_go_out(steps: list[list[int]], num_resident: int) -> None:
    kv = unified(num_blocks=20, num_resident=num_resident)
    requests = [request(i, i, 4 + 3 * i) for i in range(4)]
    for one in requests:
        assert kv.allocate_slots(one, one.num_tokens)
    out = into = 0
    for step in steps:
        moved = kv.take_transfers([requests[i] for i in step])
        out, into = out + moved.paged_out, into + moved.paged_in
        assert into <= out
        assert moved.num_faults * SIZE >= moved.paged_in
        kv.check_integrity()


@pytest.mark.parametrize(("gpu", "least"), [("a100-80gb", 90), ("h100-sxm", 100), ("mi300x", 150)])
def test_demand_paging_is_a_hundred_times_slower_than_the_gpus_memory(gpu: str, least: int) -> None:
    card = get_gpu(gpu)
    paged = 1 / (1 / card.pcie_bytes_per_s + FAULT_SECONDS / PAGE_BYTES)  # bytes per second
    assert least < card.memory_bandwidth_bytes_per_s / paged < 2 * least


def test_oversubscribed_decodes_wait_for_the_link() -> None:
    trace = workloads.fixed(prompt=1000, output=50, num_requests=8, request_rate=math.inf)
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "max_model_len": 1100}
    fits = kvsim.simulate(trace, num_gpu_blocks_override=600, **options)
    spills = kvsim.simulate(
        trace, num_gpu_blocks_override=400, allocator="unified+host-gib=1", **options
    )
    assert spills.summary["num_preemptions"] == 0  # all eight are held at once
    assert spills.summary["mean_tpot_ms"] > 3 * fits.summary["mean_tpot_ms"]
    cache = spills.summary["kv_cache"]
    rate = get_gpu("h100-sxm").pcie_bytes_per_s
    assert cache["paged_in_bytes"] < spills.summary["duration"] * rate
    # A pool that fits whole is only touched for the first time.
    roomy = kvsim.simulate(
        trace, num_gpu_blocks_override=600, allocator="unified+host-gib=1", **options
    )
    assert roomy.summary["kv_cache"]["paged_in_bytes"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"allocator": "tiered", "model": "gemma-3-27b"}, "layers with windows"),
        ({"allocator": "unified", "model": "mistral-7b"}, "layers with windows"),
        ({"allocator": "tiered+window=100"}, "layers with windows"),
        ({"allocator": "tiered+host-gib=0"}, "above 0"),
        ({"allocator": "unified+host-gib=x"}, "must be a number"),
    ],
)
def test_what_is_not_modelled_is_refused(options: dict[str, object], message: str) -> None:
    trace = Trace.from_arrays([0.0], [10], [5])
    with pytest.raises(ValueError, match=message):
        kvsim.simulate(trace, **{"model": "llama-3-8b", "gpu": "h100-sxm", **options})


# -- the experiment --------------------------------------------------------------------------------


@pytest.mark.long
def test_a_tenth_too_much_costs_most_of_the_throughput(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "REQUESTS", 20)
    paged, over = (
        offload.oversubscribed(0.9, name)["output_throughput"]
        for name in ("paged", "unified+host-gib=32")
    )
    assert over < 0.25 * paged


def test_host_memory_raises_the_hit_rate_up_to_that_of_a_larger_gpu() -> None:
    trace = workloads.multi_turn(num_requests=120, request_rate=3, seed=1, think_time=60, turns=6)
    rates = [offload.tier(gib, trace, kv_gib=1)["hit_rate"] for gib in (0, 2, 8, 32)]
    largest = offload.tier(math.inf, trace)["hit_rate"]
    assert rates == sorted(rates)
    assert rates[0] < largest - 0.05
    assert rates[-1] == pytest.approx(largest, abs=0.01)


def test_slots_that_are_only_reserved_are_not_touched() -> None:
    trace = Trace.from_arrays([0.0], [16], [1600])
    options = {"model": "llama-3-8b", "gpu": "h100-sxm", "allocator": "unified+host-gib=1"}
    options |= {"num_gpu_blocks_override": 60, "max_model_len": 2048, "horizon": 0.2}
    for scheduler in ("vllm", "orca"):
        cache = kvsim.simulate(trace, scheduler=scheduler, **options).summary["kv_cache"]
        assert cache["paged_in_bytes"] == 0


def test_a_gpu_that_holds_no_block_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no block"):
        kvsim.simulate(
            Trace.from_arrays([0.0], [10], [5]),
            model="llama-3-8b",
            gpu="h100-sxm",
            allocator="unified+block-size=64",
            num_gpu_blocks_override=3,
            max_model_len=64,
        )


def test_swapping_copies_a_piece_at_a_time() -> None:
    """A block's tensors each, a page each; and long tensors at the link's rate."""
    num_bytes = 500 * 819_200
    rate, times = get_gpu("a100-40gb").pcie_bytes_per_s, {}
    for allocator in ("paged+swap", "virtual+page-size=2MiB+swap", "dynamic+swap"):
        config = Config.build(model="opt-13b", gpu="a100-40gb", allocator=allocator)
        link = HostLink(resolve(config).cost_config)
        times[allocator] = link.swap_seconds(num_bytes) - num_bytes / rate
    assert times["paged+swap"] == pytest.approx(500 / 16 * 80 * 1e-5)
    assert times["virtual+page-size=2MiB+swap"] == pytest.approx(num_bytes / 2**21 * 1e-5)
    assert times["dynamic+swap"] == pytest.approx(0, abs=1e-12)
    latent = Config.build(model="deepseek-v3", gpu="h200-sxm", tensor_parallel_size=8)
    one = HostLink(resolve(latent).cost_config)
    assert one.copy_seconds(1) == pytest.approx(61 * 1e-5, rel=1e-6)  # no separate keys and values
