"""Prompts as spans of content, without the borders that segments of one content have inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace


class Spans(NamedTuple):
    """The spans of prompts; a segment that continues the previous one is part of the same span.

    ``content``, ``start`` and ``length`` have one value per span. ``first`` is the index of each
    prompt's first span, ``stop`` the index after its last one.
    """

    content: NDArray[np.uint64]
    start: NDArray[np.uint64]
    length: NDArray[np.int64]
    first: NDArray[np.intp]
    stop: NDArray[np.intp]

    @classmethod
    def of(cls, trace: Trace) -> Spans:
        """Merge the segments of a trace, which must have segments."""
        offsets, content = trace.segment_offsets, trace.segment_content_id
        start, length = trace.segment_start, np.asarray(trace.segment_num_tokens, np.int64)
        fresh = np.ones(len(content), bool)
        fresh[1:] = (content[1:] != content[:-1]) | (start[1:] != start[:-1] + length[:-1])
        fresh[offsets[:-1]] = True
        kept = np.flatnonzero(fresh)
        places = np.searchsorted(kept, offsets)
        return cls(
            content[kept].astype(np.uint64),
            start[kept].astype(np.uint64),
            np.add.reduceat(length, kept),
            places[:-1],
            places[1:],
        )
