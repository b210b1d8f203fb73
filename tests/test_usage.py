"""The causes of waste: their names, their sum, the refused flag, memory maps."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.kv.usage import COLUMNS, HELD, Cause, KVUsage, paint

USAGE = KVUsage(1, 2, 3, 4, 50, 7)


def test_the_names_are_those_of_the_public_tables() -> None:
    names = ["token_states", "reservation", "internal", "external", "free", "cached"]
    assert [cause.column for cause in COLUMNS] == names
    keys = ["token_states", "reservation", "internal_fragmentation", "external_fragmentation"]
    assert [cause.summary_key for cause in HELD] == keys
    assert sorted(COLUMNS) == sorted(Cause)


def test_what_is_free_is_external_while_the_head_stands_refused() -> None:
    assert USAGE.held == (1, 2, 3, 4)
    assert USAGE.refused() == (1, 2, 3, 54, 0, 7)


def test_all_memory_has_a_cause() -> None:
    USAGE.check(60)
    USAGE.refused().check(60)
    with pytest.raises(RuntimeError, match=r"invariant 9: .* does not sum to 61"):
        USAGE.check(61)
    with pytest.raises(RuntimeError, match="invariant 9"):
        KVUsage(-1, 0, 0, 0, 1, 0).check(0)


def test_a_map_shows_the_middle_of_each_range() -> None:
    ends = np.array([[0.25, 0.0], [0.5, 0.0], [0.75, 0.0]])
    rest = np.array([Cause.INTERNAL, Cause.CACHED], dtype=np.uint8)
    internal, tokens, reserved = Cause.INTERNAL, Cause.TOKEN_STATES, Cause.RESERVATION
    first = [internal, tokens, reserved, internal]
    assert paint(8, ends, rest).tolist() == [*first, *[Cause.CACHED] * 4]
    assert paint(2, ends, rest).tolist() == [reserved, Cause.CACHED]
    assert paint(3, ends[:, :0], rest[:0]).tolist() == [Cause.FREE] * 3
