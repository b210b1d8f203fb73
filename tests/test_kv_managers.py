"""Paged and contiguous managers: bytes by cause, prefix hits, windows, reservations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from driving import compute, kv_config
from driving import request as plain

from kvsim.attention.chunked import ChunkedLocal
from kvsim.attention.full import FullAttention
from kvsim.attention.sliding import SlidingWindow
from kvsim.budget.layout import KV_DTYPES, KVLayout, LayerKV
from kvsim.kv.allocator_spec import parse_allocator
from kvsim.kv.block_hash import block_keys
from kvsim.kv.contiguous import (
    ContiguousManager,
    ContiguousMax,
    ContiguousOracle,
    ContiguousPow2,
)
from kvsim.kv.manager import KVCacheConfig
from kvsim.kv.paged import PagedManager
from kvsim.kv.usage import Cause
from kvsim.records.request import Request


def request(
    index: int, segments: list[tuple[int, int, int]], output: int = 8, salt: int = 0
) -> Request:
    prompt = sum(length for _, _, length in segments)
    return Request(index, 0.0, prompt, output, segments, 1000 + index, cache_salt=salt)


def paged(num_gpu_blocks: int = 20, spec: Any = None, **options: Any) -> PagedManager:
    specs = spec if isinstance(spec, list) else [spec or FullAttention(4)]
    return PagedManager(kv_config(num_gpu_blocks, *specs, **options))


# -- bytes by cause -------------------------------------------------------------------------------


def test_paged_causes_of_one_request() -> None:
    kv = paged()
    r = plain(0, prompt=6, output=5)  # fills 10 slots by its end: the last token has none
    compute(kv, r, 6)
    assert kv.usage[:4] == (6, 2, 0, 0)
    for _ in range(4):
        r.num_tokens += 1
        compute(kv, r, 1)
    assert kv.usage[:4] == (10, 0, 2, 0)
    assert kv.usage.unallocated == (19 - 3) * 4
    kv.check_integrity()


def test_a_shared_slot_counts_once() -> None:
    kv = paged()
    shared = [(7, 0, 8)]
    first, second = request(0, [*shared, (1, 0, 2)]), request(1, [*shared, (2, 0, 3)])
    compute(kv, first, 10)
    assert kv.lookup(second).num_tokens == 8
    compute(kv, second, 3)
    assert kv.usage.token_states == 8 + 2 + 3
    assert kv.kv_usage == 4 / 19
    kv.check_integrity()
    kv.free(first)
    assert kv.usage.token_states == 8 + 3
    kv.check_integrity()


@pytest.mark.parametrize(
    ("reserve", "prompt", "output", "expected"),
    [
        # asked, last slot used, handed out by a buddy allocator
        (ContiguousMax, 10, 25, (128, 34, 128)),
        (ContiguousPow2, 10, 25, (10 + 32, 34, 64)),
        (ContiguousOracle, 10, 25, (10 + 25, 34, 64)),
        (ContiguousPow2, 100, 28, (128, 127, 128)),  # never beyond max_model_len
    ],
)
def test_contiguous_causes_of_one_request(
    reserve: Any, prompt: int, output: int, expected: tuple[int, int, int]
) -> None:
    asked, last, handed_out = expected
    kv = contiguous(300, reserve)
    r = plain(0, prompt, output)
    compute(kv, r, prompt)
    assert kv.usage == (
        prompt,
        last - prompt,
        asked - last,
        handed_out - asked,
        300 - handed_out,
        0,
    )
    compute(kv, r, 1)
    assert kv.usage.token_states == prompt + 1
    kv.retire(r)
    assert kv.usage == (0, 0, asked, handed_out - asked, 300 - handed_out, 0)
    kv.check_integrity()
    kv.free(r)
    assert kv.usage.unallocated == 300


def contiguous(num_slots: int, reserve: Any, fit: Any = "buddy", window: int | None = None) -> Any:
    kind = "full" if window is None else "sliding"
    layout = KVLayout((LayerKV(kind, window, 1),), KV_DTYPES["bf16"], 0)
    return reserve(KVCacheConfig(layout, num_slots, 4, 128), fit=fit)


class Half(ContiguousMax):
    """Half of what its base reserves."""

    def reserve(self, request: Request) -> int:
        return super().reserve(request) // 2


class Silent(ContiguousManager):
    """Says nothing of what it reserves."""


def test_a_contiguous_manager_of_ones_own_may_ask_its_base() -> None:
    kv = contiguous(300, Half, "first")
    compute(kv, plain(0, 10, 25), 10)
    assert sum(kv.usage[:3]) == 128 // 2


def test_a_contiguous_manager_must_say_what_it_reserves() -> None:
    with pytest.raises(ValueError, match="allocator Silent: set reserves to Reserve"):
        contiguous(300, Silent)


def test_exact_fit_hands_out_no_more_than_asked() -> None:
    kv = contiguous(300, ContiguousOracle, "first")
    compute(kv, plain(0, 10, 25), 10)
    assert kv.usage.external == 0


def test_a_rolling_buffer_holds_one_window() -> None:
    kv = contiguous(300, ContiguousMax, "first", window=16)
    r = plain(0, 40, 40)
    compute(kv, r, 40)
    assert kv.usage == (16, 0, 0, 0, 284, 0)
    compute(kv, r, 1)
    assert kv.usage.token_states == 16


def test_refused_calls_change_nothing() -> None:
    kv = paged(5)
    compute(kv, plain(0, 12, 2), 12)
    before = (kv.usage, list(kv.pool.free_queue()))
    assert not compute(kv, plain(1, 9, 2), 9)
    assert (kv.usage, list(kv.pool.free_queue())) == before


def test_a_block_check_is_exact_at_the_boundary() -> None:
    """Four usable blocks of four slots serve exactly 16 slots, not 15 and not 17."""
    assert paged(5).fits(plain(0, 12, 4))
    assert not paged(5).fits(plain(0, 13, 4))
    kv = paged(5, enable_prefix_caching=False)
    r = plain(0, 12, 6)
    compute(kv, r, 12)
    for _ in range(4):
        assert compute(kv, r, 1)
    assert not compute(kv, r, 1)
    oracle = contiguous(16, ContiguousOracle, "first")
    assert oracle.fits(plain(0, 12, 4))
    assert not oracle.fits(plain(0, 13, 4))
    assert not contiguous(24, ContiguousOracle, "buddy").fits(plain(0, 13, 4))  # largest piece: 16


# -- prefix hits ----------------------------------------------------------------------------------


def test_the_last_token_is_always_computed() -> None:
    kv = paged()
    compute(kv, request(0, [(7, 0, 12)]), 12)
    assert kv.lookup(request(1, [(7, 0, 12)])).num_tokens == 8
    assert kv.lookup(request(2, [(7, 0, 13)])).num_tokens == 12


def test_outputs_are_hit_by_a_later_turn() -> None:
    kv = paged()
    first = request(0, [(7, 0, 6)], output=8)
    compute(kv, first, 6)
    for _ in range(6):
        first.num_tokens += 1
        compute(kv, first, 1)
    kv.free(first)
    follow_up = request(1, [(7, 0, 6), (1000, 0, 7), (9, 0, 5)])
    assert kv.lookup(follow_up).num_tokens == 12
    assert kv.lookup(request(2, [(7, 0, 6), (1001, 0, 7), (9, 0, 5)])).num_tokens == 4


def test_content_is_the_same_however_it_is_cut_and_only_then() -> None:
    def keys(segments: list[tuple[int, int, int]], salt: int = 0) -> list[int]:
        return block_keys(request(0, segments, salt=salt), 3, 4)

    whole = keys([(7, 0, 12)])
    assert whole == keys([(7, 0, 5), (7, 5, 7)]) == keys([(7, 0, 4), (7, 4, 1), (7, 5, 7)])
    assert keys([(7, 0, 12)], salt=3)[0] != whole[0]
    for other in ([(7, 1, 12)], [(8, 0, 12)], [(7, 0, 3), (7, 4, 9)], [(7, 0, 3), (8, 3, 9)]):
        assert keys(other)[0] != whole[0], other
    tail = keys([(7, 0, 8), (8, 8, 4)])
    assert tail[:2] == whole[:2]
    assert tail[2] != whole[2]
    # the same block behind another prefix is other content
    assert keys([(9, 0, 4), (7, 4, 8)])[1] != whole[1]


# -- windows --------------------------------------------------------------------------------------


def test_sliding_windows_drop_blocks_and_cap_memory() -> None:
    kv = paged(40, SlidingWindow(4, window=10), enable_prefix_caching=False)
    r = plain(0, 6, 60)
    compute(kv, r, 6)
    most = 0
    for _ in range(50):
        r.num_tokens += 1
        compute(kv, r, 1)
        usage = kv.usage
        most = max(most, kv.pool.num_used[0])
        seen = min(r.num_computed_tokens, 10)
        assert usage.token_states == seen
        kv.check_integrity()
    assert most == 4  # 10 tokens may touch four blocks of four


def test_a_shared_block_is_out_of_the_window_where_it_is_so_for_all() -> None:
    kv = paged(40, SlidingWindow(4, window=6))
    r, other = (Request(i, 0.0, 12, 5, [(7, 0, 12)], 100 + i) for i in range(2))
    compute(kv, r, 12)
    compute(kv, r, 1)
    assert kv.usage.internal == 3  # it has left block 0, and three slots of block 1
    hit = kv.lookup(other)
    assert hit.num_tokens == 8
    assert kv.allocate_slots(other, 4, hit)
    assert kv.usage.internal == 3  # of block 0; it sees all of block 1
    other.num_computed_tokens = 12
    compute(kv, other, 1)
    assert kv.usage.internal == 3  # both have left the same slots of block 1
    compute(kv, r, 1)
    assert kv.usage.internal == 3  # one has left all of it
    kv.free(other)
    assert kv.usage.internal == 0


def test_window_slots_that_nobody_sees_are_internal() -> None:
    kv = paged(40, SlidingWindow(4, window=5), enable_prefix_caching=False)
    r = plain(0, 7, 9)
    compute(kv, r, 7)
    compute(kv, r, 1)  # with 7 tokens computed the first 3 are out of sight
    assert kv.usage[:4] == (5, 0, 3, 0)


def test_chunked_local_attention_forgets_whole_chunks() -> None:
    kv = paged(40, ChunkedLocal(4, chunk=8), enable_prefix_caching=False)
    r = plain(0, 7, 30)
    compute(kv, r, 7)
    compute(kv, r, 1)
    compute(kv, r, 1)
    assert kv.pool.num_used[0] == 1
    assert kv.usage.token_states == 1


def test_hybrid_groups_share_one_pool() -> None:
    kv = paged(40, [FullAttention(4), SlidingWindow(4, window=6)], enable_prefix_caching=False)
    r = plain(0, 12, 20)
    compute(kv, r, 12)
    compute(kv, r, 1)
    assert kv.pool.num_used == [4, 3]  # 13 tokens; of the window's, the first block has gone
    assert kv.usage.token_states == 13 + 6
    kv.check_integrity()
    kv.free(r)
    assert kv.pool.num_free == 39


# -- memory map -----------------------------------------------------------------------------------


def test_memory_map_shows_the_cause_at_every_slot() -> None:
    kv = paged(4)
    r = plain(0, 6, 2)
    compute(kv, r, 6)
    token, reserved, internal = Cause.TOKEN_STATES, Cause.RESERVATION, Cause.INTERNAL
    assert kv.memory_map(12).tolist() == [token] * 6 + [reserved, internal] + [Cause.FREE] * 4
    kv.free(r)
    assert kv.memory_map(3).tolist() == [Cause.CACHED, Cause.FREE, Cause.FREE]
    buddy = contiguous(64, ContiguousOracle)
    compute(buddy, plain(0, 4, 5), 4)
    assert buddy.memory_map(32).tolist() == (
        [token] * 2 + [reserved] * 2 + [Cause.EXTERNAL] * 4 + [Cause.FREE] * 24
    )


def test_memory_map_agrees_with_the_bytes() -> None:
    kv = contiguous(256, ContiguousPow2)
    for i in range(5):
        compute(kv, plain(i, 5 + i, 3 + 2 * i), 5 + i)
    counts = np.bincount(kv.memory_map(256), minlength=len(Cause))
    usage = kv.usage
    assert counts.tolist() == [usage.unallocated, *usage[:4], 0]


@pytest.mark.parametrize("spec", [FullAttention(4), SlidingWindow(4, window=6)])
def test_the_map_of_a_paged_cache_agrees_with_the_bytes(spec: Any) -> None:
    kv = paged(40, spec)
    requests = [request(i, [(7, 0, 8), (100 + i, 0, 4 + i)], output=5) for i in range(4)]

    def check() -> None:
        counts = np.bincount(kv.memory_map(kv.total_bytes), minlength=len(Cause)).tolist()
        usage = kv.usage
        assert counts == [usage.unallocated - usage.cached, *usage[:4], usage.cached]

    # In a window, of blocks that several share, the map shows what one of them sees.
    for r in requests[: 1 if spec.window else 4]:
        compute(kv, r, r.num_prompt_tokens - kv.lookup(r).num_tokens)
        compute(kv, r, 1)
        check()
    kv.free(requests[0])
    check()
    assert kv.usage.cached > 0


# -- the grammar ----------------------------------------------------------------------------------


def test_allocator_grammar() -> None:
    assert parse_allocator("contiguous-max+fit=first").params == {"fit": "first"}
    spec = parse_allocator("paged+int8+block-size=32+window=4096+gqa=8")
    assert spec == ("paged", {"block_size": 32}, "int8", 8, 4096, None, False, None)
    assert parse_allocator("paged+mqa").num_kv_heads == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pagd", "unknown allocator 'pagd'; did you mean paged"),
        ("paged+block-size=0", "block-size=0: must be a whole number, above 0"),
        ("paged+block-size=x", "block-size=x: must be a whole number"),
        ("paged+fit=first", "unknown modifier 'fit'"),
        ("contiguous-max+fit=worst", "fit=worst: must be one of buddy, first, best"),
        ("paged+int8+fp8", "two modifiers set the same thing"),
        ("paged+mqa+gqa=2", "two modifiers set the same thing"),
        ("paged+int8+int8", "int8 is given twice"),
        ("paged+int8=3", "int8 takes no value"),
        ("paged+window", "window needs a whole number"),
        ("paged+window=-1", "window needs a whole number"),
        ("paged+block-size", "block-size needs a value"),
        ("+int8", "a name must come first"),
        ("paged+", "must be KEY or KEY=VALUE"),
        ("paged+eviction=x", "unknown eviction policy 'x'"),
    ],
)
def test_allocator_grammar_errors(text: str, message: str) -> None:
    import kvsim

    trace = kvsim.Trace.from_arrays([0.0], [4], [4])
    with pytest.raises(ValueError, match="^[^\n]*" + message.replace("+", r"\+")):
        kvsim.simulate(trace, allocator=text)
