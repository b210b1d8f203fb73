"""Prompts as runs of one list of texts are what lists of pieces would be."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.trace import Trace
from kvsim.trace.columns import RowError
from kvsim.trace.slices import Slices
from workloads.draft import Pace
from workloads.sessions import Script


def slices(runs: list[tuple[int, int, int]]) -> Slices:
    """Runs of four texts of 3, 1, 4 and 2 tokens."""
    first, end, cut = np.array(runs, np.int64).T
    return Slices(np.array([7, 0, 5, 9]), np.array([3, 1, 4, 2]), first, end, cut)


def test_a_run_is_its_pieces() -> None:
    found = slices([(0, 3, 2), (2, 4, 0), (1, 2, 0)])
    expected = [[(7, 2, 1), (0, 0, 1), (5, 0, 4)], [(5, 0, 4), (9, 0, 2)], [(0, 0, 1)]]
    assert list(found) == expected
    assert list(found.take([2, 0])) == [expected[2], expected[0]]


def test_a_trace_is_the_same_either_way() -> None:
    found = slices([(0, 3, 2), (2, 4, 0), (1, 2, 0)])
    given_to = [
        Trace.from_arrays([0, 1, 2], [6, 6, 1], [1] * 3, segments=s) for s in (found, list(found))
    ]
    for field in fields(Trace):
        one, other = (getattr(trace, field.name) for trace in given_to)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist(), field.name


def test_what_is_wrong_with_a_run_is_said_as_of_a_list() -> None:
    with pytest.raises(RowError, match="must not be empty"):
        Trace.from_arrays([0, 0], [3, 1], [1, 1], segments=slices([(0, 1, 0), (2, 2, 0)]))
    with pytest.raises(ValueError, match=r"one list per request \(2\), got 1"):
        Trace.from_arrays([0, 0], [3, 1], [1, 1], segments=slices([(0, 1, 0)]))
    with pytest.raises(RowError, match="must be num_prompt_tokens"):
        Trace.from_arrays([0], [3], [1], segments=slices([(0, 1, 1)]))


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), min_size=1), min_size=1),
    st.none() | st.integers(1, 20),
)
def test_a_script_writes_what_was_said(
    sessions: list[list[tuple[int, int]]], most: int | None
) -> None:
    script, expected = Script(most), []
    for turns in sessions:
        script.begin()
        said: list[tuple[int, int]] = []  # every token: its content, its place in it
        for asked, told in turns:
            question = asked + (not said)
            if question:
                text = script.new_content()
                script.say(question, text)
                said += [(text, k) for k in range(question)]
            expected.append(said[-most:] if most else list(said))
            script.answer(told)
            answer = script.new_content() - 1
            said += [(answer, k) for k in range(told)]
    draft = script.draft(Pace())
    assert draft.segments is not None
    for pieces, tokens, length in zip(
        draft.segments, expected, draft.num_prompt_tokens, strict=True
    ):
        assert [(c, start + k) for c, start, n in pieces for k in range(n)] == tokens
        assert length == len(tokens)
        assert all(n > 0 for _, _, n in pieces)
