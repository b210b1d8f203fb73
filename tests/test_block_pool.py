"""The block pool and the contiguous address spaces under random operations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from strategies import examples

from kvsim.kv.address_space import AddressSpace
from kvsim.kv.block_pool import NULL_BLOCK, BlockPool
from kvsim.records.paged import BlockTable
from kvsim.records.record import NONE
from kvsim.rules.blocks.pool import free_blocks


def test_the_free_queue_is_last_in_first_out_without_content_and_lru_with_it() -> None:
    pool = BlockPool(8)
    blocks = pool.get(5)
    assert blocks == [1, 2, 3, 4, 5]
    for block in (1, 2):
        pool.cache(block, key=100 + block)
    pool.free([5, 4, 2, 1, 3])
    # without content: to the front, keeping the list's order; with content: to the back in order
    assert list(pool.free_queue()) == [5, 4, 3, 6, 7, 2, 1]
    assert pool.kv.pool.num_cached == 2


def test_content_survives_until_its_block_is_handed_out() -> None:
    pool = BlockPool(4)
    first, second = pool.get(2)
    pool.cache(first, 11)
    pool.cache(second, 22)
    pool.free([second, first])
    assert pool.lookup(22, 0) == second
    assert pool.get(2) == [3, second]  # the block without content first, then the oldest content
    assert pool.lookup(22, 0) is None
    assert pool.lookup(11, 0) == first


def test_a_hit_takes_a_free_block_out_of_the_queue() -> None:
    pool = BlockPool(4)
    (block,) = pool.get(1)
    pool.cache(block, 11)
    pool.free([block])
    assert pool.num_free == 3
    pool.touch([NULL_BLOCK, block])
    assert (pool.num_free, pool.ref_cnt[block]) == (2, 1)
    pool.touch([block])
    pool.free([block])
    assert (pool.num_free, pool.ref_cnt[block]) == (2, 1)


def test_equal_content_may_sit_in_several_blocks_and_the_oldest_is_found() -> None:
    pool = BlockPool(5)
    a, b = pool.get(2)
    pool.cache(b, 11)
    pool.cache(a, 11)
    assert pool.lookup(11, 0) == b
    pool.free([b])
    assert pool.get(3) == [3, 4, b]
    assert pool.lookup(11, 0) == a


def test_groups_do_not_find_each_others_content() -> None:
    pool = BlockPool(5, num_groups=2)
    (block,) = pool.get(1, group=1)
    pool.cache(block, 11)
    assert pool.lookup(11, 0) is None
    assert pool.lookup(11, 1) == block
    assert pool.num_used == [0, 1]


def test_the_null_block_never_gets_into_the_free_queue() -> None:
    pool = BlockPool(5)
    first, second = pool.get(2)
    table = BlockTable(blocks=[first, NULL_BLOCK, second], length=3)
    free_blocks(pool.kv.pool, pool.kv.groups[0], table, 0, 3)
    assert list(pool.free_queue()) == [second, first, 3, 4]
    assert pool.num_used == [0]


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        ("ref_cnt", "invariant 3: block 1 has ref_cnt 2 but is in 1 tables"),
        ("used", r"invariant 2: 3 in use \(2 counted\)"),
        ("queue", "invariant 3: block 1 has ref_cnt 0 but is in 1 tables"),
        ("group", "invariant 4: block 1 is in a table of group 0"),
        ("twice", "invariant 4: block 1 is twice in one table"),
        ("shared", "invariant 4: block 1 is shared but has no key"),
        ("part", "wrong part of the free queue"),
        ("free twice", "a block is in the free queue twice"),
        ("sharing", "1 shared blocks counted, 0 found"),
        ("cards", "1 hash aliases, 0 found"),
        ("owner", "block 1 has hash aliases without a key, or those of another block"),
    ],
)
def test_check_integrity_finds_a_broken_pool(corrupt: str, message: str) -> None:
    pool = BlockPool(6)
    table = pool.get(3)
    pool.check_integrity([(0, table)])
    tables, state = [(0, table)], pool.kv.pool
    if corrupt == "ref_cnt":
        state.blocks[table[0]].ref_cnt += 1
    elif corrupt == "used":
        pool.kv.groups[0].num_used -= 1
    elif corrupt == "queue":
        pool.free([table[0]])
    elif corrupt == "group":
        state.blocks[table[0]].group = 1
    elif corrupt == "twice":
        table.append(table[0])
    elif corrupt == "shared":
        pool.touch([table[0]])
        tables.append((0, table[:1]))
    elif corrupt == "free twice":
        state.unhashed[0] = state.unhashed[1]
    elif corrupt == "sharing":
        state.num_shared += 1
    elif corrupt == "cards":
        state.num_hash_aliases, state.first_hash_aliases = 1, [NONE] * 6
    elif corrupt == "owner":
        state.num_hash_aliases, state.first_hash_aliases = 1, [NONE, 5, *[NONE] * 4]
    else:
        state.blocks[5].hashed = True
    with pytest.raises(RuntimeError, match=message):
        pool.check_integrity(tables)


class PoolMachine(RuleBasedStateMachine):
    """Tables over a pool: append, share by hit, free, in any order; content must stay true."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(9)
        self.tables: list[list[int]] = []
        self.holders: dict[int, list[int]] = {}  # key -> blocks that carry it, longest first

    @rule(n=st.integers(1, 4))
    def admit(self, n: int) -> None:
        if n <= self.pool.num_free:
            self.tables.append(self.pool.get(n))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), content=st.integers(0, 5), collides=st.booleans())
    def fill(self, data: Any, content: int, collides: bool) -> None:
        table = data.draw(st.sampled_from(self.tables))
        block = data.draw(st.sampled_from(table))
        if block not in self.pool.hashed_blocks():
            # Contents that share a bucket, and contents in several blocks.
            key = content * (self.pool.kv.pool.bucket_mask + 1) if collides else content
            self.holders.setdefault(key, []).append(block)
            self.pool.cache(block, key)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def hit(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.holders)))
        block = self.pool.lookup(key, 0)
        if block is not None:
            self.pool.touch([block])
            self.tables.append([block])

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: Any) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.free(table[::-1])

    @invariant()
    def integrity(self) -> None:
        self.pool.check_integrity((0, table) for table in self.tables)
        hashed = set(self.pool.hashed_blocks())
        for key, blocks in self.holders.items():
            blocks[:] = [block for block in blocks if block in hashed]
            # The oldest copy is found, and never other content.
            assert self.pool.lookup(key, 0) == (blocks[0] if blocks else None)
        assert sum(map(len, self.holders.values())) == len(hashed) == self.pool.kv.pool.num_hashed


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = examples(60, stateful_step_count=40)


# -- contiguous memory ----------------------------------------------------------------------------


def test_buddy_decomposes_splits_and_merges() -> None:
    space = AddressSpace(15_728, "buddy")
    assert [size for _, size in space.holes()] == [8192, 4096, 2048, 1024, 256, 64, 32, 16]
    assert [space.allocate(2048) for _ in range(7)] == [
        (12_288, 2048),  # the piece of that very size first
        (8192, 2048),
        (10_240, 2048),
        (0, 2048),
        (2048, 2048),
        (4096, 2048),
        (6144, 2048),
    ]
    assert space.allocate(2048) is None
    assert space.allocate(900) == (14_336, 1024)
    for start in (0, 4096, 2048, 6144):
        space.free(start, 2048)
    assert space.holes()[0] == (0, 8192)


def test_first_and_best_fit_choose_differently() -> None:
    spaces = {fit: AddressSpace(100, fit) for fit in ("first", "best")}  # type: ignore[arg-type]
    for space in spaces.values():
        starts = [space.allocate(n) for n in (30, 10, 20, 10, 30)]
        assert starts == [(0, 30), (30, 10), (40, 20), (60, 10), (70, 30)]
        space.free(0, 30)
        space.free(40, 20)
    assert spaces["first"].allocate(15) == (0, 15)
    assert spaces["best"].allocate(15) == (40, 15)


@examples(200)
@given(
    st.sampled_from(["buddy", "first", "best"]),
    st.integers(1, 200),
    st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=40),
)
def test_pieces_never_overlap_and_all_memory_comes_back(
    fit: Any, num_slots: int, operations: list[tuple[bool, int]]
) -> None:
    space, held = AddressSpace(num_slots, fit), []
    empty = space.holes()
    for is_free, n in operations:
        if is_free and held:
            space.free(*held.pop(n % len(held)))
        else:
            place = space.allocate(n)
            if place is None:
                # refused only if no hole takes it (buddy: no aligned power of two)
                wanted = 1 << (n - 1).bit_length() if fit == "buddy" else n
                assert all(size < wanted for _, size in space.holes())
            else:
                held.append(place)
        covered = 0
        for start, size in sorted(held + space.holes()):
            assert start == covered
            covered += size
        assert covered == num_slots
    for piece in held:
        space.free(*piece)
    assert space.holes() == empty


@pytest.mark.parametrize("fit", ["buddy", "first", "best"])
def test_the_largest_piece_of_an_empty_memory(fit: Any) -> None:
    for num_slots in (1, 2, 3, 17, 64, 100):
        space = AddressSpace(num_slots, fit)
        assert space.allocate(space.largest()) is not None
        assert AddressSpace(num_slots, fit).allocate(space.largest() + 1) is None


def test_too_many_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="128 groups of layers: at most 127"):
        BlockPool(8, num_groups=128)
