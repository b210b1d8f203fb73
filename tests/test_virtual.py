"""Pages behind contiguous addresses: the paper's table, closed forms, windows, pressure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from driving import compute, request
from hypothesis import given
from hypothesis import strategies as st
from strategies import COARSE, examples, of_several_pieces, under_pressure

import kvsim
import workloads
from kvsim.budget.layout import KV_DTYPES, KVLayout, LayerKV
from kvsim.kv.manager import KVCacheConfig
from kvsim.kv.usage import Cause
from kvsim.kv.virtual import PAGE_SIZES, VirtualManager
from kvsim.records.virtual import TensorKind
from kvsim.rules.managers.virtual import num_needed_pages
from kvsim.testing import check_result
from kvsim.trace import Trace

KIB, MIB = 2**10, 2**20


def layout(num_layers: int, kv_heads: int, window: int | None = None) -> KVLayout:
    """Return layers of 16-bit heads of 128, one GPU's share of them."""
    kind: Any = "full" if window is None else "sliding"
    layer = LayerKV(kind, window, 2 * kv_heads * 128 * 2)
    return KVLayout((layer,) * num_layers, KV_DTYPES["bf16"], 0)


def manager(layers: KVLayout, num_bytes: int, page: str = "64KiB", **options: Any) -> Any:
    return VirtualManager(KVCacheConfig(layers, num_bytes, 16, 4096, **options), page_size=page)


def free_pages(kv: VirtualManager) -> list[int]:
    """Free pages, the next one out last."""
    virtual = kv.kv.virtual
    return list(virtual.free_pages[: virtual.num_free_pages])


# -- the paper ------------------------------------------------------------------------------------

#: Layers, and KV heads of one GPU.
YI_6B, YI_34B, LLAMA_3_8B = (32, 4), (60, 8), (32, 8)


@pytest.mark.parametrize(
    ("model", "tp", "page", "tokens"),
    [
        # vAttention, section 7.4: from 32 (Yi-34B, TP-1) to 128 (Yi-6B, TP-2) with 64 KiB pages
        (YI_34B, 1, "64KiB", 32),
        (YI_6B, 2, "64KiB", 128),
        # and so by 2 MiB / (8 heads x 128 x 2 bytes)
        (LLAMA_3_8B, 1, "2MiB", 1024),
        (LLAMA_3_8B, 1, "256KiB", 128),
        (LLAMA_3_8B, 2, "2MiB", 2048),
        (YI_6B, 1, "2MiB", 2048),
    ],
)
def test_tokens_per_page(model: tuple[int, int], tp: int, page: str, tokens: int) -> None:
    num_layers, heads = model
    kv = manager(layout(num_layers, heads // tp), 1 << 34, page)
    assert kv.block_size == tokens
    r = request(0, tokens, 9)
    compute(kv, r, tokens)
    assert kv.num_pages - kv.kv.virtual.num_free_pages == 2 * num_layers
    compute(kv, r, 1)  # the next token takes a page of every tensor
    assert kv.num_pages - kv.kv.virtual.num_free_pages == 4 * num_layers


@pytest.mark.parametrize(("page", "least", "most"), [("64KiB", 4, 15), ("256KiB", 16, 60)])
def test_worst_waste_of_a_request(page: str, least: int, most: int) -> None:
    """Section 7.4: 4 to 15 MB with 64 KiB pages and 16 to 60 with 256 KiB, all GPUs together."""
    waste = {}
    for name, (num_layers, heads) in {"6B": YI_6B, "34B": YI_34B}.items():
        for tp in (1, 2):
            kv = manager(layout(num_layers, heads // tp), 1 << 34, page)
            r = request(0, kv.block_size, 2)  # its last token opens a page, and another never comes
            compute(kv, r, kv.block_size)
            compute(kv, r, 1)
            one_token = 2 * num_layers * heads // tp * 256
            waste[name, tp] = tp * (kv.usage.internal + one_token) / MIB
    assert min(waste.values()) == waste["6B", 1] == least
    assert max(waste.values()) == waste["34B", 2] == most


# -- closed forms ---------------------------------------------------------------------------------


def test_causes_of_one_request() -> None:
    """300 bytes per token and tensor: a page of 64 KiB ends inside the 219th token."""
    kv = manager(KVLayout((LayerKV("full", None, 600),) * 2, KV_DTYPES["bf16"], 0), 32 * 65536)
    r = request(0, 200, 11)  # fills 210 slots by its end
    compute(kv, r, 200)
    assert kv.usage == (4 * 60_000, 4 * 3_000, 4 * (65_536 - 63_000), 0, 28 * 65_536, 0)
    compute(kv, r, 10)
    assert kv.usage[:3] == (4 * 63_000, 0, 4 * 2_536)
    kv.retire(r)
    assert kv.usage[:3] == (0, 0, 4 * 65_536)
    kv.check_integrity()
    kv.free(r)
    assert kv.usage == (0, 0, 0, 0, 32 * 65_536, 0)
    straddling = request(1, 219, 2)
    compute(kv, straddling, 219)
    assert kv.num_pages - kv.kv.virtual.num_free_pages == 8


def test_a_refused_call_changes_nothing() -> None:
    kv = manager(layout(2, 8), 10 * 65536)  # two rows of four pages, and two more
    r = request(0, 32, 40)
    compute(kv, r, 32)
    assert not compute(kv, request(1, 33, 2), 33)
    compute(kv, r, 32)
    before = (kv.usage, free_pages(kv))
    assert not compute(kv, r, 1)
    assert (kv.usage, free_pages(kv)) == before


def test_returned_pages_are_taken_first() -> None:
    """Deferred reclamation: the next request finds the pages mapped that the last one left."""
    kv = manager(layout(2, 8), 40 * 65536)
    compute(kv, request(0, 32, 4), 32)
    second, third = request(1, 50, 4), request(2, 50, 4)
    compute(kv, second, 50)
    pages = kv._pages(second.own_blocks)
    kv.free(second)
    compute(kv, third, 50)
    assert kv._pages(third.own_blocks) == pages


def test_it_fits_to_the_page() -> None:
    kv = manager(layout(2, 8), 8 * 65536)  # 64 tokens
    assert kv.fits(request(0, 60, 4))
    assert not kv.fits(request(0, 60, 5))


@pytest.mark.long
@given(st.integers(1, 300), st.integers(1, 60), st.sampled_from([100, 1024, 3000, 70_000]))
def test_a_window_holds_whole_pages_and_no_more(prompt: int, window: int, slot: int) -> None:
    """After every token: exactly the pages that the window touches, for each tensor."""
    layers = KVLayout((LayerKV("sliding", window, 2 * slot),) * 2, KV_DTYPES["bf16"], 0)
    kv = manager(layers, 1 << 28)
    r = request(0, prompt, 40)
    compute(kv, r, prompt)
    for _ in range(39):
        compute(kv, r, 1)
        n = r.num_computed_tokens
        first = max(0, n - 1 - window + 1) * slot // 65536
        assert kv.num_pages - kv.kv.virtual.num_free_pages == 4 * (-(-n * slot // 65536) - first)
        assert kv.usage.token_states == 4 * slot * min(n, window)


@pytest.mark.long
@given(st.integers(1, 60), st.integers(1, 90), st.sampled_from([1024, 3000, 7000, 70_000]))
def test_a_window_never_takes_more_than_was_promised(window: int, chunk: int, slot: int) -> None:
    """A prompt in chunks holds at most what an admission counted on, and it comes close."""
    layers = KVLayout((LayerKV("sliding", window, 2 * slot),), KV_DTYPES["bf16"], 0)
    kv = manager(layers, 1 << 25, max_in_flight_tokens=chunk)
    r = request(0, 1000, 2)
    most = 0
    while r.num_computed_tokens < 1000:
        compute(kv, r, min(chunk, 1000 - r.num_computed_tokens))
        most = max(most, kv.num_pages - kv.kv.virtual.num_free_pages)
    assert 0 <= num_needed_pages(kv.kv, 1000) - most <= 4  # two tensors, a page at either end


def test_kinds_of_layers_are_mapped_apart() -> None:
    layers = (
        LayerKV("full", None, 2048),
        LayerKV("sliding", 8, 2048),
        LayerKV("full", None, 576, 1),
    )
    kv = manager(KVLayout(layers, KV_DTYPES["bf16"], 0), 1 << 30)
    assert kv.kinds == [TensorKind(2, 1024), TensorKind(2, 1024, 8), TensorKind(1, 576)]


def test_latents_are_copied_on_every_rank() -> None:
    """MLA's latent has no heads to share out, so tensor parallelism saves none of it."""
    options: dict[str, Any] = {"model": "deepseek-v3", "gpu": "h200-sxm", "quantization": "fp8"}
    trace = Trace.from_arrays([0.0], [1000], [2])
    sizes = []
    for tp in (8, 16):
        run = kvsim.simulate(
            trace,
            allocator="virtual+page-size=64KiB",
            tensor_parallel_size=tp,
            kv_cache_memory_bytes=10 << 30,
            **options,
        )
        sizes.append(run.memory["token_states"].max())
    assert sizes[0] == sizes[1] > 0


def test_the_map_shows_what_usage_says() -> None:
    kv = manager(layout(2, 8, window=40), 40 * 65536)
    requests = [request(i, 70, 20) for i in range(3)]
    for r in requests:
        compute(kv, r, 70)
        compute(kv, r, 1)
    kv.free(requests[0])
    kv.retire(requests[1])
    causes, total = kv.memory_map(40 * 64), kv.total_bytes
    for cause, num_bytes in zip(
        (Cause.TOKEN_STATES, Cause.RESERVATION, Cause.INTERNAL), kv.usage, strict=False
    ):
        assert np.mean(causes == cause) == pytest.approx(num_bytes / total, abs=0.01)


# -- whole runs -----------------------------------------------------------------------------------


@pytest.mark.long
def test_five_rows_at_equal_bytes() -> None:
    names = ["dynamic", "virtual", "paged", "paged+int8", "contiguous-max"]
    trace = workloads.sharegpt(num_requests=30, request_rate=20, seed=0)
    runs = kvsim.compare(trace, names, model="gpt2", gpu="l4", kv_cache_memory_bytes=200 * MIB)
    assert [row["allocator"] for row in runs.rows] == names
    for row in runs.rows:
        assert row["kv_cache"]["bytes"] == pytest.approx(200 * MIB, rel=0.02)
        held = ("token_states", "reservation", "internal_fragmentation", "external_fragmentation")
        assert sum(row["kv_cache"][cause] for cause in held) == pytest.approx(1)
    assert runs["dynamic"].provenance["scheduler"] == "orca"
    assert runs["virtual"].provenance["scheduler"] == "vllm"


def test_small_pages_waste_less() -> None:
    trace = workloads.sharegpt(num_requests=100, request_rate=20, seed=0)
    waste = {}
    for page in PAGE_SIZES:
        name = f"virtual+page-size={page}"
        run = kvsim.simulate(trace, model="llama-3-8b", gpu="a100-80gb", allocator=name)
        waste[page] = 1 - run.summary["kv_cache"]["token_states"]
    assert sorted(waste, key=lambda page: waste[page]) == list(PAGE_SIZES)


def test_wrong_page_sizes_and_samples_are_refused() -> None:
    trace = Trace.from_arrays([0.0], [10], [10])
    with pytest.raises(ValueError, match="page-size=4KiB: must be one of 64KiB"):
        kvsim.simulate(trace, allocator="virtual+page-size=4KiB")
    with pytest.raises(ValueError, match="one sequence per request"):
        kvsim.simulate(trace, allocator="virtual", scheduler="vllm-v0", num_samples=2)


VIRTUAL = ["virtual", "virtual+page-size=64KiB", "virtual+page-size=64KiB+window=50"]


@pytest.mark.long
@examples(120)
@given(under_pressure([*VIRTUAL, "virtual+page-size=128KiB+int8"]))
def test_nothing_breaks_under_pressure(run: tuple[Trace, dict[str, Any]]) -> None:
    trace, options = run
    result = kvsim.simulate(trace, check_invariants=True, record_steps=True, **options)
    check_result(result)
    assert result.summary["completed"] + result.summary["num_rejected"] == len(trace)
    rejected = result.requests[result.requests["finish_reason"] == 1]
    assert (rejected["num_output_tokens"] == 0).all()


@pytest.mark.long
@examples(60)
@given(of_several_pieces())
def test_requests_of_several_pages_keep_every_invariant(run: tuple[Trace, dict[str, Any]]) -> None:
    trace, options = run
    result = kvsim.simulate(trace, check_invariants=True, record_steps=True, **options)
    check_result(result)
    assert result.summary["completed"] + result.summary["num_rejected"] == len(trace)
    assert result.requests["num_output_tokens"][0] == trace.num_output_tokens[0]
    # A single page of every tensor would not have done.
    piece = COARSE[options["allocator"]] * 131_072
    held = sum(result.memory[cause] for cause in ("token_states", "reservation", "internal"))
    windows = "window" in options["allocator"]
    assert held.max() > piece or windows
    assert held.max() >= 2 * piece or not options["allocator"].startswith("virtual") or windows


def test_what_never_fits_under_vllm_v0_is_rejected_at_once() -> None:
    """A step computes whole prompts there, so a window's request holds its whole prompt once."""
    trace = Trace.from_arrays([0.0, 0.1, 0.2], [200, 7900, 100], [2000, 3, 5])
    for allocator in ("virtual+page-size=64KiB+window=256", "paged+window=256"):
        table = kvsim.simulate(
            trace,
            model="llama-3-8b",
            gpu="l4",
            scheduler="vllm-v0",
            max_model_len=8192,
            kv_cache_memory_bytes=600 * 2**20,
            allocator=allocator,
        ).requests
        assert table["first_scheduled_time"][2] < 1.0
