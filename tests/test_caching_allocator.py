"""PyTorch's caching allocator: its documented rules, hand-worked calls, a literal oracle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.kv.caching_allocator import (
    MIB,
    Block,
    CachingAllocator,
    round_size,
    segment_size,
    should_split,
)

KIB = 1024


# -- the documented rules -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_bytes", "rounded", "segment"),
    [
        (0, 512, 2 * MIB),
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest of the small pool
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),  # from here on, a segment of its own
        (10 * MIB + 1, 10 * MIB + 512, 12 * MIB),
        (21 * MIB, 21 * MIB, 22 * MIB),
    ],
)
def test_rounding_and_segments(num_bytes: int, rounded: int, segment: int) -> None:
    assert round_size(num_bytes) == rounded
    assert segment_size(rounded) == segment
    heap = CachingAllocator(64 * MIB)
    assert heap.malloc(num_bytes) is not None
    assert heap.reserved == segment
    heap.check_integrity()


def test_splitting() -> None:
    assert should_split(512, 512)
    assert not should_split(512, 511)
    assert not should_split(MIB + 512, MIB)  # the large pool keeps up to 1 MiB with the block
    assert should_split(MIB + 512, MIB + 1)


def test_what_is_not_split_off_is_active() -> None:
    heap = CachingAllocator(64 * MIB)
    block = heap.malloc(11 * MIB)
    assert block is not None
    assert (heap.active, heap.reserved, block.size) == (12 * MIB, 12 * MIB, 12 * MIB)
    assert heap.fragmentation == 0.0


def test_hand_worked_calls() -> None:
    """Best fit, then lowest address; split, merge, and blocks that stay reserved when freed."""
    heap = CachingAllocator(64 * MIB)
    a, b, c, d = (malloc(heap, 4 * MIB) for _ in range(4))
    assert [block.address // MIB for block in (a, b, c, d)] == [0, 4, 8, 12]
    assert (heap.active, heap.reserved) == (16 * MIB, 20 * MIB)
    heap.free(b)
    heap.free(d)  # merges with the 4 MiB that are left of the segment
    assert [(x.address // MIB, x.size // MIB) for x in free_blocks(heap)] == [(4, 4), (12, 8)]
    e = malloc(heap, 3 * MIB)  # the hole of 4, not that of 8; 1 MiB left is not split off
    assert (e.address, e.size) == (4 * MIB, 4 * MIB)
    f = malloc(heap, 5 * MIB)
    assert (f.address, f.size) == (12 * MIB, 5 * MIB)
    g = malloc(heap, 100 * KIB)  # a pool of its own
    assert heap.reserved == 22 * MIB
    for block in (a, c, e, f, g):
        heap.free(block)
    assert [(x.address // MIB, x.size // MIB) for x in free_blocks(heap)] == [(0, 20), (20, 2)]
    assert (heap.active, heap.reserved, heap.fragmentation) == (0, 22 * MIB, 1.0)
    heap.empty_cache()
    assert heap.reserved == 0
    heap.check_integrity()


def test_a_full_device_takes_free_segments_back_before_it_refuses() -> None:
    heap = CachingAllocator(30 * MIB)
    small, large = malloc(heap, 100), malloc(heap, 2 * MIB)
    heap.free(large)
    assert heap.reserved == 22 * MIB
    assert malloc(heap, 24 * MIB).size == 24 * MIB  # the segment of 20 MiB made way
    assert heap.reserved == 26 * MIB
    assert heap.malloc(6 * MIB) is None  # 20 MiB more do not fit, although 4 are unreserved
    heap.free(small)
    heap.check_integrity()


def test_a_segment_in_use_cannot_go_back() -> None:
    heap = CachingAllocator(22 * MIB)
    pin, rest = malloc(heap, 2 * MIB), malloc(heap, 18 * MIB)
    assert pin.address == 0
    heap.free(rest)
    assert heap.malloc(19 * MIB) is None
    assert heap.fragmentation == pytest.approx(0.9)


def malloc(heap: CachingAllocator, num_bytes: int) -> Block:
    block = heap.malloc(num_bytes)
    assert block is not None
    heap.check_integrity()
    return block


def free_blocks(heap: CachingAllocator) -> list[Block]:
    return [block for blocks in heap.segments() for block in blocks if not block.allocated]


# -- a literal oracle -----------------------------------------------------------------------------


class Naive:
    """The same rules word for word: a list of [address, size, is free, pool] per segment."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.end = capacity, 0
        self.segments: list[list[list[int]]] = []

    def malloc(self, num_bytes: int) -> tuple[int, int] | None:
        size = 512
        while size < num_bytes:
            size += 512
        small = size <= 1048576
        fits = [
            (block[1], block[0], segment, i)
            for segment in self.segments
            for i, block in enumerate(segment)
            if block[2] and block[3] == small and block[1] >= size
        ]
        if not fits:
            wanted = (
                2097152 if small else 20971520 if size < 10485760 else -(-size // 2**21) * 2**21
            )
            if self.reserved + wanted > self.capacity:
                self.segments = [s for s in self.segments if len(s) > 1 or not s[0][2]]
            if self.reserved + wanted > self.capacity:
                return None
            self.segments.append([[self.end, wanted, True, small]])
            self.end += wanted
            fits = [(wanted, self.end - wanted, self.segments[-1], 0)]
        _, address, segment, i = min(fits, key=lambda fit: fit[:2])
        rest = segment[i][1] - size
        if (small and rest >= 512) or rest > 1048576:
            segment[i : i + 1] = [
                [address, size, False, small],
                [address + size, rest, True, small],
            ]
        else:
            segment[i][2] = False
        return address, segment[i][1]

    def free(self, address: int) -> None:
        for segment in self.segments:
            for block in segment:
                if block[0] == address:
                    block[2] = True
            i = 1
            while i < len(segment):
                if segment[i][2] and segment[i - 1][2]:
                    segment[i - 1][1] += segment.pop(i)[1]
                else:
                    i += 1

    @property
    def reserved(self) -> int:
        return sum(block[1] for segment in self.segments for block in segment)


SIZES = st.one_of(
    st.integers(0, 3 * MIB), st.integers(0, 25 * MIB), st.sampled_from([512, MIB, 10 * MIB])
)


@given(
    st.sampled_from([2 * MIB, 23 * MIB, 50 * MIB, 90 * MIB]),
    st.lists(st.one_of(SIZES, st.integers(-20, -1)), max_size=60),
)
def test_every_block_lies_where_the_rules_put_it(capacity: int, calls: list[int]) -> None:
    """A number of bytes allocates; a negative one frees the block at that place in the list."""
    heap, naive, held = CachingAllocator(capacity), Naive(capacity), []
    for call in calls:
        if call < 0:
            if held:
                block = held.pop(call % len(held))
                naive.free(block.address)
                heap.free(block)
        else:
            block, expected = heap.malloc(call), naive.malloc(call)
            assert (block and (block.address, block.size)) == expected
            held += [block] if block else []
        heap.check_integrity()
        assert heap.reserved == naive.reserved
        assert heap.active == sum(block.size for block in held)


@given(
    st.lists(st.one_of(SIZES, st.integers(-20, -1)), max_size=30),
    st.lists(st.one_of(SIZES, st.integers(-20, -1), st.none()), max_size=30),
)
def test_a_rollback_restores_everything(before: list[int], after: list[int | None]) -> None:
    heap, held = CachingAllocator(60 * MIB), []

    def do(call: int | None) -> None:
        if call is None:
            heap.empty_cache()
        elif call >= 0:
            block = heap.malloc(call)
            held.extend([block] if block else [])
        elif held:
            heap.free(held.pop(call % len(held)))

    def picture() -> list[object]:
        blocks = [
            [(b.address, b.size, b.allocated) for b in segment] for segment in heap.segments()
        ]
        return [blocks, heap.active, heap.reserved, heap._end]

    for call in before:
        do(call)
    kept, at_first = list(held), picture()
    addresses = [block.address for block in kept]
    heap.begin()
    for call in after:
        do(call)
    heap.rollback()
    assert picture() == at_first
    assert [block.address for block in kept] == addresses
    heap.check_integrity()
    # ... and what follows goes the way it would have gone.
    held[:] = kept
    for call in after:
        do(call)
        heap.check_integrity()
