"""Parts of prompts that an encoder computes, such as images: read, checked, and identified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.trace.columns import RowError, check_length, everywhere

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]


def read_items(
    given: Sequence[Iterable[tuple[int, int]]] | None, n: int
) -> tuple[Ints, Ints, Ints]:
    """Return offsets by request, and start and length of every item.

    Raises
    ------
    ValueError
        For values that are not lists; RowError for values that are not pairs of whole numbers.
    """
    empty = np.zeros(0, np.int64)
    if given is None:
        return everywhere(0, n + 1), empty, empty.copy()
    check_length("encoder_items", given, n, "list")
    offsets, pairs = np.zeros(n + 1, np.int64), []
    for row, items in enumerate(given):
        for item in items if isinstance(items, list | tuple) else (items,):
            pair = item if isinstance(item, list | tuple) else ()
            if len(pair) != 2 or any(type(one) is not int for one in pair):
                raise RowError(row, "encoder_items", f"has {item!r}, must be pairs of integers")
            pairs.append(pair)
        offsets[row + 1] = len(pairs)
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return offsets, table[:, 0].copy(), table[:, 1].copy()


def rows_of(trace: Trace) -> Ints:
    return np.repeat(np.arange(len(trace)), np.diff(trace.item_offsets))


def check_items(trace: Trace) -> None:
    """Raise RowError unless items lie in their prompt, in order, each within one segment."""
    rows, start, length = rows_of(trace), trace.item_start, trace.item_num_tokens
    if not len(rows):
        return
    ok = (start >= 0) & (length >= 1) & (start + length <= trace.num_prompt_tokens[rows])
    ok[1:] &= (rows[1:] != rows[:-1]) | (start[1:] >= start[:-1] + length[:-1])
    allowed = "one after another within the prompt, each of at least one token"
    _check(trace, rows, ok, allowed)
    if trace.has_segments:
        left = segments_of_items(trace)[2]
        _check(trace, rows, left >= length, "within one segment, which identifies its content")


def _check(trace: Trace, rows: Ints, ok: NDArray[np.bool_], allowed: str) -> None:
    if not ok.all():
        k = int(np.argmin(ok))
        item = (int(trace.item_start[k]), int(trace.item_num_tokens[k]))
        raise RowError(int(rows[k]), f"item {item}", f"must lie {allowed}")


def segments_of_items(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Return by item its content, its start in the content, and the tokens left in its segment.

    Without segments every prompt has a unique content.
    """
    rows = rows_of(trace)
    if not trace.has_segments:
        left = trace.num_prompt_tokens[rows] - trace.item_start
        return -2 * rows - 1, trace.item_start, left
    ends = np.cumsum(trace.segment_num_tokens)
    before = np.concatenate(([0], ends))[trace.segment_offsets[:-1]]
    at = before[rows] + trace.item_start  # index among the tokens of all prompts
    place = np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1)
    first = ends[place] - trace.segment_num_tokens[place]
    inside = at - first
    return trace.segment_content_id[place], trace.segment_start[place] + inside, ends[place] - at


def contents_of_items(trace: Trace) -> Ints:
    """Return a number per item, from 0 on, that is equal for items with equal tokens."""
    content, start, _ = segments_of_items(trace)
    table = np.stack([content, start, trace.item_num_tokens], axis=1)
    numbers: Ints = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers
