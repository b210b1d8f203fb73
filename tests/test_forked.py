"""Parallel samples and beams: sharing, copy-on-write, gangs, swapping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from driving import kv_config
from hypothesis import given
from hypothesis import strategies as st

import kvsim
from kvsim.attention.full import FullAttention
from kvsim.kv.forked import ForkedManager
from kvsim.records.request import Request
from kvsim.rules.blocks.attention import cdiv
from kvsim.rules.blocks.keys import draw_parent
from kvsim.testing import check_result
from kvsim.trace import Trace

OPT = {"model": "opt-13b", "gpu": "a100-40gb"}
V0 = {**OPT, "scheduler": "vllm-v0"}


def manager(num_gpu_blocks: int = 1000, block_size: int = 16, **options: Any) -> ForkedManager:
    full = FullAttention(block_size)
    return ForkedManager(
        kv_config(
            num_gpu_blocks, full, slot_bytes=160, max_model_len=2048, max_num_samples=8, **options
        )
    )


def decode(kv: ForkedManager, request: Request, stop: int) -> list[tuple[int, int]]:
    """Serve a request alone; returns blocks held and table entries after every step."""
    assert kv.allocate_slots(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    counts = []
    while request.num_computed_tokens < stop:
        assert kv.allocate_slots(request, 1)
        request.num_computed_tokens += 1
        kv.check_integrity()
        counts.append((kv.pool.num_used[0], kv.num_logical_blocks))
    return counts


@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_samples_share_the_full_blocks_of_their_prompt_and_nothing_else(prompt, n) -> None:
    kv = manager()
    counts = decode(kv, Request(0, 0.0, prompt, 100, [], 1, num_samples=n), prompt + 70)
    for length, (held, logical) in enumerate(counts, prompt + 1):
        assert logical == n * cdiv(length, 16)
        assert held == prompt // 16 + n * (cdiv(length, 16) - prompt // 16)
    assert kv.num_copied_blocks == (n - 1 if prompt % 16 else 0)  # the last sharer writes in place


@pytest.mark.long
def test_beams_share_more_than_samples_and_no_less_than_one_block_each() -> None:
    samples = decode(manager(), Request(0, 0.0, 20, 200, [], 1, num_samples=4), 200)
    kv = manager(use_beam_search=True, beam_switch=0.2)
    beams = decode(kv, Request(0, 0.0, 20, 200, [], 1, num_samples=4), 200)
    assert sum(held for held, _ in beams) < 0.7 * sum(held for held, _ in samples)
    assert all(held >= cdiv(length, 16) for length, (held, _) in enumerate(beams, 21))
    assert kv.num_copied_blocks > 4


def test_a_refused_call_changes_nothing() -> None:
    kv = manager(num_gpu_blocks=1 + 4)
    request = Request(0, 0.0, 32, 100, [], 1, num_samples=3)
    assert kv.allocate_slots(request, 32)
    request.num_computed_tokens = 32
    before = [list(table) for table in kv.block_ids(request)]
    assert not kv.allocate_slots(request, 1)  # three blocks are needed, two are free
    assert kv.block_ids(request) == before
    assert kv.num_free == 2
    kv.check_integrity()


def test_swapping_keeps_what_is_shared() -> None:
    kv = manager(swap_space_bytes=10**6, use_beam_search=True, beam_switch=0.3)
    request = Request(0, 0.0, 40, 100, [], 1, num_samples=4)
    decode(kv, request, 60)

    def shape() -> list[list[int]]:
        first = kv.block_ids(request)[0]
        return [
            [first.index(block) if block in first else -1 for block in table]
            for table in kv.block_ids(request)
        ]

    before = shape()
    held = kv.pool.num_used[0]
    assert kv.swap_out(request) == held * 160 * 16
    assert kv.pool.num_used == [0]
    assert kv.swap_in(request) == held * 160 * 16
    kv.check_integrity()
    assert shape() == before


@st.composite
def cases(draw: st.DrawFn) -> tuple[Trace, dict[str, Any]]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n = int(rng.integers(2, 14))
    trace = Trace.from_arrays(
        np.sort(rng.uniform(0, draw(st.sampled_from([0.0, 1.0, 5.0])), n)),
        rng.integers(1, 60, n),
        rng.integers(1, 60, n),
        num_samples=rng.integers(1, 6, n),
    )
    options = {
        **OPT,
        "block_size": draw(st.sampled_from([1, 4, 16])),
        "num_gpu_blocks_override": draw(st.integers(20, 120)),
        "max_num_seqs": draw(st.sampled_from([6, 16, 256])),
        "check_invariants": True,
    }
    if draw(st.integers(0, 3)) == 0:
        reserve = draw(st.sampled_from(["max", "pow2", "oracle"]))
        return trace, {**options, "allocator": f"contiguous-{reserve}", "max_model_len": 128}
    return trace, {
        **options,
        "scheduler": "vllm-v0",
        "use_beam_search": draw(st.booleans()) and bool((trace.num_samples > 1).any()),
        "beam_switch": draw(st.sampled_from([0.0, 0.1, 1.0])),
        "preemption_mode": draw(st.sampled_from(["recompute", "swap"])),
        "swap_space": draw(st.sampled_from([0.0, 0.05, 4.0])),
    }


@pytest.mark.long
@given(cases())
def test_requests_of_several_sequences_keep_every_invariant(case) -> None:
    trace, options = case
    check_result(kvsim.simulate(trace, **options))


def test_a_full_host_memory_falls_back_to_recomputing() -> None:
    trace = Trace.from_arrays([0.0] * 6, [40] * 6, [60] * 6, num_samples=[3] * 6)
    tight = {**V0, "num_gpu_blocks_override": 60}
    swapped = kvsim.simulate(trace, swap_space=4.0, **tight).summary
    recomputed = kvsim.simulate(trace, swap_space=0.0, **tight).summary
    assert swapped["num_preemptions"] > 0 == swapped["num_recomputed_tokens"]
    assert recomputed["num_recomputed_tokens"] > 0
    assert swapped["completed"] == recomputed["completed"] == 6


def test_contiguous_memory_holds_a_copy_per_sequence() -> None:
    trace = Trace.from_arrays([0.0], [100], [50])
    one = kvsim.simulate(trace, allocator="contiguous-oracle", **OPT).summary["kv_cache"]
    four = kvsim.simulate(trace, allocator="contiguous-oracle", num_samples=4, **OPT).summary
    assert four["kv_cache"]["peak_usage"] == 4 * one["peak_usage"]


def test_sampling_more_costs_time_and_gets_the_same_answer_lengths() -> None:
    trace = Trace.from_arrays([0.0] * 4, [100] * 4, [50] * 4)
    one = kvsim.simulate(trace, **V0)
    four = kvsim.simulate(trace, num_samples=4, **V0)
    assert four.requests["num_output_tokens"].tolist() == [4 * 50] * 4
    assert four.summary["total_output_tokens"] == 4 * one.summary["total_output_tokens"]
    steps = (four.requests["finish_time"] - four.requests["first_token_time"]).sum() / (4 * 49)
    assert four.summary["mean_itl_ms"] == pytest.approx(1e3 * steps, rel=1e-9)
    assert four.summary["duration"] > one.summary["duration"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"scheduler": "vllm", "use_beam_search": True}, "one sequence per request"),
        ({"scheduler": "orca", "allocator": "paged"}, "one sequence per request"),
        ({"scheduler": "vllm-v0", "max_num_seqs": 2}, "max_num_seqs"),
        ({"scheduler": "vllm-v0", "allocator": "paged+window=64"}, "full attention"),
        ({"scheduler": "vllm-v0", "num_lookahead_tokens": 2}, "num_lookahead_tokens"),
    ],
)
def test_what_cannot_serve_several_sequences_says_so(options, reason) -> None:
    trace = Trace.from_arrays([0.0], [100], [50])
    with pytest.raises(ValueError, match=reason):
        kvsim.simulate(trace, num_samples=3, **{**OPT, **options})


def test_beams_are_served_under_v0_and_a_note_says_so() -> None:
    trace = Trace.from_arrays([0.0], [100], [50])
    samples = kvsim.simulate(trace, num_samples=2, **OPT).provenance
    beams = kvsim.simulate(trace, num_samples=2, use_beam_search=True, **OPT).provenance
    assert (samples["scheduler"], samples["notes"]) == ("vllm", [])
    assert beams["scheduler"] == "vllm-v0"
    assert beams["notes"][0].startswith("scheduler vllm-v0: use_beam_search")
    swaps = kvsim.simulate(trace, allocator="paged+swap", **OPT).provenance
    assert swaps["notes"] == [
        "scheduler vllm-v0: allocator paged+swap swaps, which vllm does not do"
    ]


def test_more_sequences_than_may_run_are_rejected_at_once() -> None:
    trace = Trace.from_arrays([0.0, 0.0], [100, 100], [50, 50], num_samples=[2, 8])
    result = kvsim.simulate(trace, max_num_seqs=4, **V0)
    assert result.summary["rejections"] == {"more sequences than max_num_seqs (4)": 1}
    assert result.summary["completed"] == 1


def test_several_sequences_are_not_recorded(tmp_path) -> None:
    trace = Trace.from_arrays([0.0], [100], [50], num_samples=[2])
    with pytest.raises(ValueError, match="one sequence per request"):
        kvsim.record(trace, tmp_path / "case.json", **V0)
    assert not list(tmp_path.iterdir())


def test_host_memory_is_free_again_after_swapping_in() -> None:
    kv = manager(swap_space_bytes=3 * 160 * 16)
    request = Request(0, 0.0, 40, 100, [], 1, num_samples=2)
    assert kv.allocate_slots(request, 40)
    for _ in range(3):
        assert kv.swap_out(request) > 0
        assert kv.swap_in(request) > 0
    kv.check_integrity()


@pytest.mark.long
def test_the_more_beams_switch_the_more_they_share() -> None:
    held = []
    for switch in (0.0, 0.02, 0.2):
        kv = manager(use_beam_search=True, beam_switch=switch)
        counts = decode(kv, Request(0, 0.0, 20, 200, [], 1, num_samples=4), 200)
        held.append(sum(blocks for blocks, _ in counts))
    samples = decode(manager(), Request(0, 0.0, 20, 200, [], 1, num_samples=4), 200)
    assert held[0] == sum(blocks for blocks, _ in samples)
    assert held[0] > held[1] > held[2]


def test_beams_switch_as_often_as_they_are_told() -> None:
    parents = np.array(
        [[draw_parent(3, end, beam, 5, 0.1) for beam in range(5)] for end in range(4000)]
    )
    moved = parents != np.arange(5)
    assert moved.mean() == pytest.approx(0.1, abs=0.01)
    assert np.bincount(parents[moved]).min() > 0.15 * moved.sum()  # any other beam, alike


def test_a_short_prompt_may_need_more_than_a_longer_one() -> None:
    """Full blocks of the prompt are shared: 48 + 47 tokens of 5 take 18 blocks, 10 + 47 take 20."""
    trace = Trace.from_arrays([0.0, 0.0], [48, 10], [47, 47], num_samples=[5, 5])
    result = kvsim.simulate(
        trace,
        model="opt-13b",
        gpu="a100-40gb",
        num_gpu_blocks_override=20,
        scheduler="vllm-v0",
        max_num_seqs=6,
        swap_space=0.0,
        check_invariants=True,
    )
    check_result(result)
    assert result.requests["finish_reason"].tolist() == [0, 1]
    assert result.requests["num_output_tokens"][1] == 0  # at once


@pytest.mark.long
@pytest.mark.parametrize("beams", [False, True])
def test_a_run_tells_what_sharing_saves_and_copies_on_write(beams: bool) -> None:
    """One request: blocks held and entries of its tables step by step, as the manager has them."""
    trace = Trace.from_arrays([0.0], [20], [40])
    cost = {"cost_model": "constant", "backend": "python", "check_invariants": True}
    forks = {"use_beam_search": beams, "beam_switch": 0.05 if beams else 0.0}
    result = kvsim.simulate(trace, num_samples=4, **forks, **{**V0, **cost})
    kv = manager(**forks)
    counts = decode(kv, Request(0, 0.0, 20, 40, [], 1, num_samples=4), 59)
    held, entries = (sum(column) for column in zip((2, 8), *counts, strict=True))
    cache = result.summary["kv_cache"]
    assert cache["saved_by_sharing"] == pytest.approx(1 - held / entries, rel=1e-9)
    assert cache["num_copied_blocks"] == kv.num_copied_blocks > 0
    one = kvsim.simulate(trace, **{**V0, **cost}).summary["kv_cache"]
    assert (one["saved_by_sharing"], one["num_copied_blocks"]) == (None, None)


def test_beams_say_what_of_their_time_is_missing() -> None:
    trace = Trace.from_arrays([0.0], [20], [40])
    samples = kvsim.simulate(trace, num_samples=4, **V0).provenance["notes"]
    beams = kvsim.simulate(trace, num_samples=4, use_beam_search=True, **V0).provenance["notes"]
    assert not any("8726" in note for note in samples)
    assert any("0.61 requests/s" in note for note in beams)
