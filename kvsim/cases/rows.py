"""Requests of recorded cases, of any engine, as rows of a replica's contents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.contents import Contents, segment_rows

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence, Sized

    from numpy.typing import NDArray

#: A request that names no output segment gets this plus its index, as in the recorded cases.
FIRST_OUTPUT_SEGMENT = 16000

#: Seconds between the arrivals of requests in one step, if they have no arrival times.
BETWEEN_ARRIVALS = 1e-6

Span = tuple[int, int, int]


def output_segment(given: int | None, index: int) -> int:
    """Return the segment of a request's output: as given, else derived from the request's index."""
    return FIRST_OUTPUT_SEGMENT + index if given is None else given


def span(segment: Sequence[int]) -> Span:
    """Return (segment, start, n) of [segment, n], which starts at 0, or [segment, start, n]."""
    return segment[0], segment[1] if len(segment) > 2 else 0, segment[-1]


def num_tokens(spans: Iterable[Sequence[int]]) -> int:
    return sum(one[-1] for one in spans)


def numbers(keys: Iterable[Hashable]) -> list[int]:
    """Number the keys from 1 in the order of their first occurrence; None is 0."""
    known: dict[Hashable, int] = {}
    return [0 if key is None else known.setdefault(key, len(known) + 1) for key in keys]


def offsets(lists: Iterable[Sized], first: int = 0) -> NDArray[np.int64]:
    """Return the offsets of lists in their concatenation, with the end of the last."""
    return np.cumsum([first, *map(len, lists)])


def contents_of_rows(
    lists: dict[str, Any], segments: Sequence[Span], items: NDArray[Any] | None = None
) -> Contents:
    columns = zip(*segments, strict=True) if segments else ((), (), ())
    arrays = {name: np.array(rows) for name, rows in lists.items()}
    return Contents(arrays, segment_rows(*columns), items)
