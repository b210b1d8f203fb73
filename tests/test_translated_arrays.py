"""Functions over arrays: compiled, they read and write what Python reads and writes."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.compiled import loops
from kvsim.compiled.translation.kinds import UntranslatableError

ROWS = np.dtype([("reason", np.int8), ("time", np.float64), ("is_late", np.bool_)])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Keep no code: the cache does not know the text of this file."""
    monkeypatch.setattr(loops, "FOLDER", tmp_path)


def items(numbers, table, halves, flags):
    """Read and write items, also of narrow and of strided arrays."""
    total = 0
    for at in range(len(numbers)):
        numbers[at] += 3 * table[at, 1] - len(table)
        table[at, 0] = numbers[at]
        halves[at] = halves[at] + 1
        total += numbers[at] * (2 if flags[at] else 1)
        flags[at] = numbers[at] > 4
    return total + int(halves[0] * 8)


def parts(pairs, number, share):
    """Read parts of tuples, rows and slices; the ends of a slice may lie beyond the array."""
    (numbers, table), _ = pairs
    row, rest = table[number], numbers[number:9]
    first = pairs[:1][0][0][:number]
    row[0] = table.shape[0] * 10 + table.shape[1]
    rest[0] -= 1
    none = numbers[3:2]
    return len(row) + 100 * len(rest) + 1000 * len(first) + len(none) + int(share * 8) + row[1]


def times(rows, reasons, late):
    """Read columns of a table."""
    total = 0.0
    for at in range(1, len(rows)):
        total += rows[at] - rows[at - 1]
        reasons[at] = -at
        late[at] = not late[at]
    cut = rows[1:3]
    cut[1] = 0.25
    return int(total * 4) + len(cut) + sum_of(reasons)


def sum_of(numbers):
    total = 0
    for at in range(len(numbers)):
        total += numbers[at]
    return total


def table_of(number: int) -> np.ndarray:
    table = np.zeros(number, ROWS)
    table["time"], table["reason"] = np.arange(number) ** 2 / 4, 100
    return table


def arguments(function):
    """Return arguments of a function, with the arrays that it may change."""
    numbers, table = np.arange(5), np.arange(10).reshape(5, 2)
    if function is items:
        given = numbers, table.astype(np.int32), np.arange(5) / 2, numbers % 2 == 1
        return given, given
    if function is parts:
        return (((numbers, table), 2.0), 2, 0.5), (numbers, table)
    rows = table_of(5)
    return tuple(rows[name] for name in ("time", "reason", "is_late")), (rows,)


@pytest.mark.parametrize("function", [items, parts, times])
def test_compiled_functions_do_what_python_does(function):
    given, changed = arguments(function)
    others, others_changed = arguments(function)
    assert loops.translated(function)(*given) == int(function(*others))
    for one, other in zip(changed, others_changed, strict=True):
        assert one.tolist() == other.tolist()


def test_it_is_compiled_again_for_arrays_of_another_kind():
    compiled = loops.translated(sum_of)
    assert compiled(np.arange(4)) == compiled(np.arange(4, dtype=np.int8)) == 6
    assert compiled(np.arange(8)[::2]) == compiled(np.arange(8, dtype=np.int32)[::2]) == 12
    assert compiled(np.zeros(0, np.int64)) == 0


def slice_of_rows(table):
    return len(table[1:])


def last_of_a_pair(pair):
    return pair[1:]


@pytest.mark.parametrize(
    ("function", "given", "said"),
    [
        (slice_of_rows, np.zeros((2, 2)), "a slice of rows"),
        (last_of_a_pair, (1, 2), "first elements"),
        (sum_of, 3, "length of"),
    ],
)
def test_other_uses_are_refused(function, given, said):
    with pytest.raises(UntranslatableError, match=said):
        loops.translated(function)(given)


def weighted(numbers, pair, at, share):
    return int((numbers[at] + pair[0][at] * pair[1]) * share * 8)


def test_arguments_may_change_from_call_to_call():
    """Numbers, arrays and tuples, of the same kind or another."""
    compiled = loops.translated(weighted)
    numbers, others, pair = np.arange(4), np.arange(8)[::2], (np.arange(4), 2)
    for given in (
        (numbers, pair, 1, 0.5),
        (numbers, pair, 2, 0.25),
        (numbers + 1, pair, 2, 0.25),
        (numbers + 1, (numbers + 3, 5), 2, 1.5),
        (numbers + 1, (numbers + 3, 5), 2, 2),
        (others, pair, 3, 2),
        (others, (others, 1.5), np.int64(3), np.float64(0.5)),
    ):
        assert compiled(*given) == weighted(*given)


def test_an_array_that_changes_in_place_is_read_again():
    compiled, numbers = loops.translated(sum_of), np.arange(4)
    assert compiled(numbers) == 6
    numbers[:] = 5
    assert compiled(numbers) == 20


def test_checked_code_finds_an_index_out_of_bounds(monkeypatch):
    monkeypatch.setattr(loops, "CHECKED", True)
    with pytest.raises(IndexError, match=r"out of range: .*arrays.py:\d+, in .*after_the_last"):
        loops.translated(after_the_last)(np.arange(3))


def after_the_last(numbers):
    return numbers[len(numbers)]
