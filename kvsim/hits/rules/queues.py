"""Queues of blocks as linked lists: one row per block, then one sentinel row per queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kvsim.hits.rules.requests import Flags, Requests, Shorts

#: Columns: the two neighbours in the queue, the last request that used the block, counted uses.
OLDER, NEWER, USER, USES = 0, 1, 2, 3
NOBODY = -1


def empty_queues(num_nodes: int, num_queues: int) -> Shorts:
    """Return links of queues without blocks."""
    links = np.zeros((num_nodes + num_queues, 4), np.int32)
    links[:, USER] = NOBODY
    for end in range(num_nodes, num_nodes + num_queues):
        links[end, OLDER] = links[end, NEWER] = end
    return links


def append(links: Shorts, end: int, block: int) -> None:
    """Append a block as the newest of a queue."""
    newest = links[end, OLDER]
    links[block, OLDER], links[block, NEWER] = newest, end
    links[newest, NEWER] = links[end, OLDER] = block


def unlink(links: Shorts, block: int) -> None:
    older, newer = links[block, OLDER], links[block, NEWER]
    links[older, NEWER], links[newer, OLDER] = newer, older


def use_cached(requests: Requests, i: int, is_cached: Flags, links: Shorts, most_uses: int) -> int:
    """Count a use of each cached block of request i; return the number of these blocks."""
    paths, offsets, number = requests[0], requests[1], 0
    for at in range(offsets[i], offsets[i + 1]):
        block = paths[at]
        if is_cached[block]:
            links[block, USER] = i
            links[block, USES] = min(links[block, USES] + 1, most_uses)
            number += 1
    return number
