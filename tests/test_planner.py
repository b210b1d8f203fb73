"""The planner of KV-cache groups against vLLM's own plans, and where no plan was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvsim
from experiments.validation.planner import difference, layout_of, recorded_plans
from kvsim.attention.mamba import StateCache
from kvsim.budget.layout import KV_DTYPES, KVLayout, LayerKV, kv_dtype, kv_layout
from kvsim.budget.pages import Page, aligned_block_size
from kvsim.budget.planner import KVGroup, KVPlan, plan_groups, plan_pages
from kvsim.catalog import get_model

KIB = 1024


def layout(*layers: LayerKV) -> KVLayout:
    return KVLayout(layers, KV_DTYPES["bf16"], 0)


def page(kind: str, kib: int, window: int | None = None, block_size: int = 16) -> Page:
    """A page of so many KiB; ``mla`` and ``window-mla`` are latents, a state is cached."""
    size = kib * KIB
    if kind in ("mamba", "ring"):
        state = StateCache("align") if kind == "mamba" else None
        return Page(kind, None, block_size, 0, size, size, state=state)  # type: ignore[arg-type]
    latent = kind == "mla"
    name = {"mla": "full"}.get(kind, kind)
    slot = size // block_size
    return Page(name, window, block_size, slot, size, size, latent)  # type: ignore[arg-type]


def counts(plan: KVPlan) -> list[int]:
    return [group.num_layers for group in plan.groups]


# -- recorded plans -------------------------------------------------------------------------------


def test_planner_agrees_with_vllm(sample_data: Path) -> None:
    """Both layouts; the block-outermost one differs only where page sizes do."""
    plans = recorded_plans(sample_data)
    assert len(plans) == 14 + 34
    assert [difference(plan) for plan in plans] == [None] * 48


def test_a_plan_that_differs_is_told(sample_data: Path) -> None:
    plan = recorded_plans(sample_data)[0]
    assert difference(plan | {"num_blocks": 10239}) == "num_blocks: 10240, recorded 10239"
    assert "max_concurrency" in str(difference(plan | {"max_concurrency": 20.001}))
    assert "groups" in str(difference(plan | {"groups": plan["groups"] * 2}))
    assert "block_sizes" in str(difference(plan | {"block_sizes": [16, 8]}))
    mixed = recorded_plans(sample_data)[-1]
    one_page = [group | {"page": 1} for group in mixed["groups"]]
    assert "groups" in str(difference(mixed | {"groups": one_page}))


def test_planner_examples() -> None:
    """From the rules alone: Gemma-3-27B has 6 sliding groups of 8 or 9 layers and a full one."""
    plan = plan_groups(layout_of("gemma3_27b"), 16)
    assert counts(plan) == [9, 9, 9, 9, 8, 8, 10]
    assert 20 * 2**30 // plan.bytes_per_block == 16_384
    plan = plan_groups(layout_of("mixed heads"), 16)
    assert [(g.block_size, g.num_layers) for g in plan.groups] == [
        (32, 4),
        (16, 4),
        (16, 4),
        (16, 4),
    ]


# -- full attention -------------------------------------------------------------------------------


def test_hybrid_models_can_be_treated_as_full_attention() -> None:
    given = kv_layout(get_model("gpt-oss-20b"), kv_dtype("bf16"))
    plan = plan_groups(given, 16, hybrid=False)
    assert [(g.kind, g.window, g.num_layers) for g in plan.groups] == [("full", None, 24)]
    assert plan.bytes_per_block == 16 * given.bytes_per_token


def test_states_stay_when_windows_become_full_attention() -> None:
    given = layout(LayerKV("sliding", 64, KIB), LayerKV("mamba", None, 0, 1, 8 * KIB))
    plan = plan_groups(given, 16, hybrid=False, state=StateCache("align"))
    assert [group.kind for group in plan.groups] == ["full", "mamba"]


def test_layers_of_one_sort_share_a_table_whatever_their_pages() -> None:
    """Full attention, MLA and its indexer; windows of one length; one size of block."""
    mixed = [page("full", 64), page("mla", 33), page("mla", 7)]
    for packed in (False, True):
        plan = plan_pages(mixed, packed=packed)
        assert counts(plan) == [3]
        assert plan.bytes_per_block == 104 * KIB
        plan = plan_pages([page("sliding", 64, 512), page("sliding", 32, 512)], packed=packed)
        assert counts(plan) == [2]
    apart = plan_pages([page("full", 64), page("full", 64, block_size=32)])
    assert counts(apart) == [1, 1]


# -- pages of one size ----------------------------------------------------------------------------


def test_a_smaller_page_gets_a_longer_block_or_padding() -> None:
    plan = plan_pages([page("full", 64), page("sliding", 16, 128), page("sliding", 24, 128)])
    assert [group.block_size for group in plan.groups] == [16, 64, 16]
    assert [group.page_bytes for group in plan.groups] == [64 * KIB] * 3
    assert [group.used_bytes // KIB for group in plan.groups] == [64, 64, 24]
    assert plan.scheduler_block_size == 64
    assert plan.hash_block_size == 16


def test_a_smaller_state_is_padded_even_if_it_divides() -> None:
    plan = plan_pages([page("mamba", 32), page("full", 64)])
    assert [group.block_size for group in plan.groups] == [16, 16]
    assert [group.page_bytes for group in plan.groups] == [64 * KIB] * 2


def test_a_latent_is_never_padded() -> None:
    """Windows beside it are then stored as full attention are, all layers in one group."""
    plan = plan_pages([page("sliding", 64, 128), page("sliding", 64, 256), page("mla", 33)])
    assert [(g.kind, g.window, g.num_layers) for g in plan.groups] == [("full", None, 3)]
    assert plan.bytes_per_block == 161 * KIB
    even = plan_pages([page("mla", 32), page("sliding", 64, 128)])
    assert [group.block_size for group in even.groups] == [32, 16]
    with pytest.raises(ValueError, match="MLA with larger Mamba states"):
        plan_pages([page("mla", 33), page("mamba", 64)])


# -- states ---------------------------------------------------------------------------------------

#: State bytes, KV bytes per token, tensors per layer; the block that vLLM takes.
RAISED = [
    (1_097_728, 2048, 2, 16, 544),
    (2_158_592, 4096, 2, 16, 528),
    (311_296, 4096, 2, 16, 80),
    (2_170_880, 1152, 1, 16, 1920),
    (2_170_880, 1152, 1, 256, 2048),
    (311_296, 4096, 2, 64, 128),
    (100, 4096, 2, 64, 64),
    (100, 4096, 2, 8, 16),
    (100, 1152, 1, 16, 128),
]


@pytest.mark.parametrize(("state", "slot", "tensors", "block_size", "raised"), RAISED)
def test_the_block_is_raised_until_a_page_holds_a_state(
    state: int, slot: int, tensors: int, block_size: int, raised: int
) -> None:
    attention, mamba = LayerKV("full", None, slot, tensors), LayerKV("mamba", None, 0, 1, state)
    assert aligned_block_size([mamba, attention], block_size) == raised
    plan = plan_groups(layout(mamba, attention), block_size, state=StateCache("align"))
    assert plan.bytes_per_block == raised * slot
    assert [group.used_bytes for group in plan.groups] == [state, raised * slot]


def test_without_states_or_without_attention_the_block_stays() -> None:
    assert aligned_block_size([LayerKV("full", None, 64)], 8) == 8
    assert aligned_block_size([LayerKV("mamba", None, 0, 1, 10**6)], 8) == 8
    plan = plan_groups(layout(*[LayerKV("mamba", None, 0, 1, 10**6)] * 3), 8)
    assert (counts(plan), plan.bytes_per_block) == ([3], 3 * 10**6)


def test_blocks_that_states_take() -> None:
    """Of one request: 2 when cached, 1 when not, and what speculation and checkpoints ask for."""
    assert StateCache("align").num_blocks == 2
    assert StateCache("align", 3, 1).num_blocks == 6
    assert StateCache("none").num_blocks == 1
    assert StateCache("none", 3).num_blocks == 4
    group = KVGroup("mamba", None, 544, 12, 0, state=StateCache("align", 2))
    assert group.blocks_for(10**6, 8192, 10**6) == 4
    assert KVGroup("ring", None, 4, 2, 0).blocks_for(10**6, 8192, 10**6) == 1


def test_states_that_are_not_cached_have_a_block_of_the_longest_sequence() -> None:
    given = layout(LayerKV("mamba", None, 0, 1, 311_296), LayerKV("full", None, 4096))
    plan = plan_groups(given, 16, state=StateCache("none"), max_model_len=65_536)
    assert [group.block_size for group in plan.groups] == [65_536, 80]
    assert plan.scheduler_block_size == plan.hash_block_size == 327_680
    cached = plan_groups(given, 16, state=StateCache("align"), max_model_len=65_536)
    assert cached.hash_block_size == 80


def test_a_ring_has_no_part_in_the_names_of_blocks() -> None:
    ring = page("ring", 64, block_size=4)
    plan = plan_pages([page("full", 64), page("sliding", 64, 128, block_size=64), ring])
    assert plan.hash_block_size == 16
    assert plan.scheduler_block_size == 64
    assert plan_pages([ring]).hash_block_size == 4


# -- the block outermost --------------------------------------------------------------------------


def packed(*pages: Page) -> KVPlan:
    return plan_pages(pages, packed=True)


def test_packed_is_for_pages_of_several_sizes() -> None:
    pages = [page("full", 64)] * 3 + [page("sliding", 64, 128)] * 4
    assert packed(*pages) == plan_pages(pages)
    assert counts(packed(*pages)) == [3, 4]


def test_packed_buckets_are_dealt_out_by_repeats() -> None:
    """A balanced bucket with several pages sets the repeats; the least padding decides."""
    two = [page("full", 64)] * 4 + [page("full", 16)] * 4
    plan = packed(*two, *[page("sliding", 32, 128)] * 10, *[page("chunked", 32, 64)] * 5)
    # 4 leaves 2 + 3 places empty, 5 leaves 1, 6 leaves 2 + 2 + 1, ... 10 leaves 6 + 5.
    assert counts(plan) == [8, 5, 5, 5]
    assert plan.bytes_per_block == 320 * KIB


def test_packed_buckets_that_are_not_balanced_stay_whole() -> None:
    two = [page("full", 64)] * 2 + [page("full", 16)] * 2
    plan = packed(*two, *[page("chunked", 8, 64)] * 3, page("chunked", 4, 64))
    assert counts(plan) == [4, 4]


def test_packed_prefers_the_largest_of_equal_repeats() -> None:
    two = [page("full", 64)] * 2 + [page("full", 16)] * 2
    plan = packed(*two, *[page("sliding", 32, 128)] * 3)
    # 2 and 3 leave one place empty each.
    assert counts(plan) == [4, 3]


def test_packed_windows_are_cut_to_the_largest_block_where_nothing_sets_the_repeats() -> None:
    full = [page("full", 64)] * 3 + [page("full", 16)]
    plan = packed(*full, *[page("sliding", 96, 128)] * 5, *[page("chunked", 8, 64)] * 4)
    assert counts(plan) == [4, 2, 2, 1, 4]  # 208 KiB hold two windows; chunks are not cut
    assert plan.bytes_per_block == 208 * KIB


def test_packed_states_are_cut_to_the_largest_block_too() -> None:
    full = [page("full", 64)] * 3
    plan = packed(*full, *[page("mamba", 96)] * 5, *[page("ring", 32)] * 7)
    assert counts(plan) == [3, 2, 2, 1, 4, 3]
    assert plan.bytes_per_block == 192 * KIB
    small = packed(page("full", 16), *[page("mamba", 96)] * 2)
    assert counts(small) == [1, 1, 1]  # a state larger than every block: one layer a group


def test_packed_states_are_cut_even_where_repeats_are_set() -> None:
    two = [page("full", 64)] * 2 + [page("full", 16)] * 2
    plan = packed(*two, *[page("mamba", 96)] * 4)
    # By repeats, 2 each, there would be two groups of states; but 160 KiB hold only one.
    assert counts(plan) == [4, 1, 1, 1, 1]
    # By repeats four groups of two small ones, though 160 KiB would hold all eight.
    assert counts(packed(*two, *[page("mamba", 8)] * 8)) == [4, 2, 2, 2, 2]


def test_packed_states_of_different_pages_or_settings_lie_apart() -> None:
    first, second = page("mamba", 96), page("mamba", 32)
    other = second._replace(state=StateCache("align", 2))
    plan = packed(page("full", 128), first, second, other, second)
    assert [group.layers for group in plan.groups] == [(0,), (1,), (2, 4), (3,)]


def test_packed_layers_of_one_repeat_stay_together() -> None:
    pages = [page("full", 64), page("full", 16)] * 4 + [page("chunked", 8, 64)] * 2
    pages += [page("sliding", 8, 64), page("sliding", 4, 64)] * 2
    plan = packed(*pages)
    assert [group.layers for group in plan.groups] == [
        (0, 1, 2, 3, 4, 5, 6, 7),
        (8, 9),
        (10, 11, 12, 13),
    ]


def test_the_mode_of_states_goes_with_prefix_caching() -> None:
    given: dict[str, Any] = {"model": "nemotron-h-8b", "gpu": "h100-sxm"}
    kvsim.capacity(**given, mamba_cache_mode="align")
    kvsim.capacity(**given, mamba_cache_mode="none", enable_prefix_caching=False)
    with pytest.raises(ValueError, match="must be align"):
        kvsim.capacity(**given, mamba_cache_mode="none")
