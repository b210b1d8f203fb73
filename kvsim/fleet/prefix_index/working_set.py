"""Number of different prompt tokens of a trace: a cache of this size hits every shared prefix."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.contents import Contents
from kvsim.fleet.prefix_index.prompt_keys import fold_in
from kvsim.rules.blocks.keys import FIRST_KEY
from kvsim.trace.spans import Spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvsim.trace import Trace


def unique_prompt_tokens(trace: Trace, sent: NDArray[np.bool_] | None = None) -> int:
    """Count the tokens of all prompts, or of those ``sent``; a shared prefix counts once.

    Compare this number with the KV capacity of a replica and of the fleet. If it fits the fleet but
    no replica, routers that send each prefix to one replica have more hits.
    """
    rows = np.arange(len(trace)) if sent is None else np.flatnonzero(sent)
    if not trace.has_segments:
        return int(trace.num_prompt_tokens[rows].sum())
    content, start, length, first, stop = Spans.of(trace)
    first, stop = first[rows], stop[rows]
    ahead = np.append(0, np.cumsum(length))  # tokens of all spans before each one
    keys = np.full(len(first), FIRST_KEY, np.uint64)
    fold_in(keys, Contents.of(trace).lists["cache_salt"][rows].astype(np.uint64))
    at, total = first.copy(), 0
    while len(at):
        fold_in(keys, content[at])
        fold_in(keys, start[at])
        order = np.argsort(keys, kind="stable")
        keys, at, stop = keys[order], at[order], stop[order]
        begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        sizes = np.diff(np.append(begins, len(keys)))
        # A prompt that is alone in its group shares no further token.
        alone = begins[sizes == 1]
        total += int((ahead[stop[alone]] - ahead[at[alone]]).sum())
        total += int(np.maximum.reduceat(length[at], begins)[sizes > 1].sum())
        goes_on = np.repeat(sizes > 1, sizes) & (at + 1 < stop)
        keys, at, stop = keys[goes_on], at[goes_on], stop[goes_on]
        fold_in(keys, length[at].astype(np.uint64))
        at += 1
    return total
