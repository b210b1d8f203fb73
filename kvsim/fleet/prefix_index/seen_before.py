"""Prefix of each prompt, in tokens, that an infinite prefix cache would hit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.contents import Contents
from kvsim.fleet.prefix_index.prompt_keys import fold_in
from kvsim.rules.blocks.keys import FIRST_KEY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace

    Ints = NDArray[np.int64]


def tokens_seen_before(trace: Trace) -> Ints:
    """Return the number of leading tokens of each prompt that an infinite prefix cache would hit.

    The cache has the prompts and outputs of all requests in earlier rows. At least one token of
    each prompt is computed.
    """
    if not trace.has_segments:
        return np.zeros(len(trace), np.int64)
    content, start, length, first, stop = _paths(trace)
    keys = np.full(len(first), FIRST_KEY, np.uint64)
    fold_in(keys, Contents.of(trace).lists["cache_salt"].astype(np.uint64))
    seen = np.zeros(len(first), np.int64)
    row, at = np.arange(len(first)), first.copy()
    while len(at):
        fold_in(keys, content[at])
        fold_in(keys, start[at])
        order = np.lexsort((row, keys))
        keys, row, at = keys[order], row[order], at[order]
        begins = np.append(True, keys[1:] != keys[:-1])
        group = np.cumsum(begins)
        # The longest span of an earlier request, in each group of requests with equal prefixes.
        longest = np.maximum.accumulate((group << 32) + length[at]) - (group << 32)
        before = np.where(begins, 0, np.append(0, longest[:-1]))
        seen[row] += np.minimum(length[at], before)
        goes_on = (at + 1 < stop[row]) & (np.bincount(group)[group] > 1)
        keys, row, at = keys[goes_on], row[goes_on], at[goes_on]
        fold_in(keys, length[at].astype(np.uint64))
        at += 1
    return np.minimum(seen, np.asarray(trace.num_prompt_tokens, np.int64) - 1)


def _paths(trace: Trace) -> tuple[NDArray[np.uint64], NDArray[np.uint64], Ints, Ints, Ints]:
    """Return the segments of all requests, each prompt followed by its output.

    These are content, start and length of each segment, then the index of each request's first
    segment, and the index after its last one.
    """
    offsets = np.asarray(trace.segment_offsets, np.int64)
    n = len(trace)
    after = offsets[1:]
    content = np.insert(trace.segment_content_id, after, trace.output_content_id)
    start = np.insert(trace.segment_start, after, 0)
    length = np.insert(trace.segment_num_tokens, after, trace.num_output_tokens)
    first = offsets[:-1] + np.arange(n)
    return (
        content.astype(np.uint64),
        start.astype(np.uint64),
        length.astype(np.int64),
        first,
        after + np.arange(1, n + 1),
    )
