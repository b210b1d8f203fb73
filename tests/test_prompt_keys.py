"""Keys of many prompts at once are those of the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import traces, with_seldom

from kvsim.engine.incoming import IncomingRequest
from kvsim.fleet.prefix_index import prompt_keys
from kvsim.fleet.prefix_index.prompt_keys import PromptKeys, RoutedRequest
from kvsim.rules.blocks.keys import LENGTH_WORD, mix, mix_span
from kvsim.trace import Trace


@settings(max_examples=40, deadline=None)
@given(traces(), st.sampled_from([1, 3, 8, 64]), st.booleans(), st.booleans())
def test_keys_of_many_prompts_are_those_of_each(
    trace: Trace, size: int, adapters: bool, compiled: bool
) -> None:
    trace = with_seldom(trace, adapters=adapters)
    known = PromptKeys(trace, compiled=compiled)
    for row in range(len(trace)):
        alone = IncomingRequest(trace, row, 0.0)
        routed = RoutedRequest(trace, row, 0.0, known)
        assert routed.prefix_keys(size) == alone.prefix_keys(size)
        assert routed.prefix_keys(size, 1) == alone.prefix_keys(size, 1)


@pytest.mark.parametrize("compiled", [False, True])
def test_pieces_of_one_content_are_one_piece(compiled: bool) -> None:
    def keys(trace: Trace) -> list[int]:
        return PromptKeys(trace, compiled=compiled).of(0, 16).tolist()

    whole = Trace.from_arrays([0.0], [96], [1], segments=[[(5, 8, 96)]])
    parts = Trace.from_arrays([0.0], [96], [1], segments=[[(5, 8, 7), (5, 15, 80), (5, 95, 9)]])
    assert keys(whole) == keys(parts)
    apart = Trace.from_arrays([0.0], [96], [1], segments=[[(5, 8, 7), (5, 16, 80), (5, 95, 9)]])
    assert keys(whole)[0] != keys(apart)[0]


@pytest.mark.long
def test_pieces_that_differ_have_different_numbers() -> None:
    contents, starts = np.arange(2**18, dtype=np.uint64), np.arange(0, 2**14, 8, dtype=np.uint64)
    for size in (1, 16, 512):
        many = np.concatenate(
            [cut_all(contents, 0, size), cut_all(contents, 16, size), cut_all(7, starts, size)]
        )
        assert len(np.unique(many)) == len(many) - 2  # content 7 at 0 and at 16 stand there twice


def cut_all(contents, starts, size: int):
    """Return the numbers of pieces, as a prompt of one block each would have them."""
    pieces = np.array(contents, np.uint64) + np.zeros_like(np.array(starts), np.uint64)
    prompt_keys.fold_in(pieces, np.array(starts, np.uint64))
    return pieces + np.uint64(size * LENGTH_WORD % 2**64)


@pytest.mark.parametrize("length", [1, 7, 16, 17])
def test_length_and_start_of_a_piece_count(length: int) -> None:
    keys = {mix_span(5, 3, start, n) for start in range(64) for n in range(1, length + 1)}
    assert len(keys) == 64 * length
    assert mix_span(5, 3, 0, 16) == mix(5, mix(3, 0) + 16 * LENGTH_WORD - 2**64 * 9)


def test_what_is_computed_ahead_is_bounded(monkeypatch) -> None:
    trace = Trace.from_arrays([0.0] * 9, [40] * 9, [1] * 9)
    alone = [list(IncomingRequest(trace, row, 0.0).prefix_keys(16)) for row in range(9)]
    monkeypatch.setattr(prompt_keys, "MOST_TOKENS", 100)
    known = PromptKeys(trace)
    assert [known.of(row, 16).tolist() for row in range(9)] == alone
    known.of(0, 16)
    assert len(known._ahead[16]) == 2
    monkeypatch.setattr(prompt_keys, "MOST_TOKENS", 1)  # a prompt longer than that comes alone
    assert PromptKeys(trace).of(3, 16).tolist() == alone[3]
