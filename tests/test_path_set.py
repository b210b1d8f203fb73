"""Different blocks of paths are those that a counter of every block finds."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.fleet.routing.path_set import PathSet

#: Prompts of a few words each: equal words after equal words are equal blocks.
prompts = st.lists(st.lists(st.sampled_from([3, 256, 1 << 40]), max_size=5), max_size=12)


def path_of(prompt: list[int]) -> list[int]:
    """Name every word by all words up to it, which Python's hash does well enough."""
    return [hash(tuple(prompt[: k + 1])) >> 1 for k in range(len(prompt))]


@given(prompts, st.randoms(use_true_random=False))
def test_different_blocks_are_those_of_a_counter(texts, random) -> None:
    counter: Counter[int] = Counter()
    found, number = PathSet(), 0
    paths = [path_of(text) for text in texts]
    for path in paths:
        number += found.add(np.array(path, np.int64).tobytes())
        counter.update(path)
        assert number == len(counter)
    random.shuffle(paths)
    for path in paths:
        number -= found.remove(np.array(path, np.int64).tobytes())
        counter.subtract(path)
        assert number == len(+counter)
    assert number == 0


def test_what_is_not_there_cannot_be_taken_out() -> None:
    paths = PathSet()
    paths.add(b"1" * 8)
    with pytest.raises(ValueError, match="not there"):
        paths.remove(b"2" * 8)
    paths.clear()
    with pytest.raises(ValueError, match="not there"):
        paths.remove(b"1" * 8)
