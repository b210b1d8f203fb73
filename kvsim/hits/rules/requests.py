"""The requests that a cache serves one after another, without simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Shorts = NDArray[np.int32]
    Flags = NDArray[np.uint8]

    #: Blocks of all requests, request by request, root first; offsets of the requests in them;
    #: number of blocks that each request looks up (it only inserts the others); tokens of each
    #: prompt; and tokens per block, upper bound of the blocks' numbers, first measured request.
    Requests = tuple[Shorts, Ints, Ints, Ints, tuple[int, int, int]]


def num_hits(requests: Requests, i: int, is_cached: Flags) -> int:
    """Return the length of the longest cached path that a request looks up, in blocks."""
    paths, offsets, num_lookups = requests[0], requests[1], requests[2]
    at, stop = offsets[i], offsets[i] + num_lookups[i]
    while at < stop and is_cached[paths[at]]:
        at += 1
    return int(at - offsets[i])


def tokens_of(requests: Requests, i: int, hits: int) -> int:
    """Return the tokens of a request's first ``hits`` blocks, 0 if the request is not measured."""
    block_size, _, first_measured = requests[4]
    return min(hits * block_size, int(requests[3][i])) if i >= first_measured else 0
