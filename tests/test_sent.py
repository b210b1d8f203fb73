"""Who was never sent a content holds no block with it: a bound that is never too low."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.compiled import sent
from kvsim.compiled.loops import translated

SIZE = 4

record_sent, bound_depths, row_of = (
    translated(one) for one in (sent.record_sent, sent.bound_depths, sent.row_of)
)

prompts = st.lists(
    st.tuples(st.integers(-9, 9), st.integers(1, 11)), min_size=1, max_size=5
)  # contents and lengths


def depths(held: set[int], prompt: list[tuple[int, int]]) -> int:
    """Count the whole blocks of a prompt before the first content that a place does not know."""
    tokens = 0
    for content, length in prompt:
        if content not in held:
            break
        tokens += length
    return tokens // SIZE


@pytest.mark.long
@pytest.mark.parametrize(("num_rows", "num_places"), [(1 << 12, 64), (1 << 12, 70), (2, 70)])
@given(
    past=st.lists(st.tuples(st.integers(0, 69), prompts, st.integers(-99, -50)), max_size=12),
    prompt=prompts,
)
def test_it_is_a_bound(
    num_rows: int,
    num_places: int,
    past: list[tuple[int, list[tuple[int, int]], int]],
    prompt: list[tuple[int, int]],
) -> None:
    """Of 64 places with rows enough it is exact."""
    table, most = np.zeros(num_rows, np.int64), np.full(num_places, -1)
    held: list[set[int]] = [set() for _ in range(num_places)]
    for place, sent_there, output in past:
        if place < num_places:
            contents = np.array([content for content, _ in sent_there])
            record_sent(table, contents, output, place)
            held[place] |= {*contents.tolist(), output}
    columns = np.array(prompt, np.int64).T.copy()
    bound_depths(table, columns[0], columns[1], SIZE, most)
    true = np.array([depths(one, prompt) for one in held])
    assert (most >= true).all()
    if num_places == 64 and num_rows > 2:
        rows = {row_of(table, content) for content in range(-99, 10)}
        assert len(rows) == 109
        assert (most == true).all()


def test_an_output_is_known_to_who_makes_it() -> None:
    table, most = np.zeros(64, np.int64), np.zeros(3, np.int64)
    record_sent(table, np.array([1]), -5, 2)
    bound_depths(table, np.array([1, -5, 7]), np.array([8, 8, 8]), SIZE, most)
    assert most.tolist() == [0, 0, 4]
