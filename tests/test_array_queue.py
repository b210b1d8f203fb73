"""A queue in an array keeps the order of a list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvsim.records.paged import Block
from kvsim.records.queue import ArrayQueue
from kvsim.rules.blocks.array_queue import array_append, array_compact, array_popleft, array_remove

NUM_BLOCKS = 5


@given(st.lists(st.integers(0, 2 * NUM_BLOCKS)))
def test_it_is_a_list(moves: list[int]) -> None:
    """Each move is a block that lines up, or steps out if it stands there, or whose turn it is."""
    blocks = [Block() for _ in range(NUM_BLOCKS)]
    line, standing = ArrayQueue(entries=[0] * 2 * NUM_BLOCKS, size=2 * NUM_BLOCKS), []
    for move in moves:
        k = move % NUM_BLOCKS
        if move == 2 * NUM_BLOCKS:
            if standing:
                assert array_popleft(line) == standing.pop(0)
        elif k in standing:
            array_remove(line, blocks, k)
            standing.remove(k)
        else:
            array_append(line, blocks, k)
            standing.append(k)
        there = [k for k in line.entries[line.first : line.stop] if k >= 0]
        assert there == standing
        assert all(line.entries[blocks[k].slot] == k for k in standing)
        assert line.stop <= line.size


def test_gaps_close_when_the_array_is_full() -> None:
    blocks = [Block() for _ in range(3)]
    line = ArrayQueue(entries=[0] * 6, size=6)
    for k in (0, 1, 2):
        array_append(line, blocks, k)
    for k in (0, 1, 0):
        array_remove(line, blocks, k)
        array_append(line, blocks, k)
    assert line.entries == [-1, -1, 2, -1, 1, 0]
    array_remove(line, blocks, 2)
    array_append(line, blocks, 2)
    assert line.entries[: line.stop] == [1, 0, 2]
    array_compact(line, blocks)
    assert [array_popleft(line) for _ in range(3)] == [1, 0, 2]
