"""Host memory behind the block pool: contents by key, evicted in the order they were stored.

Fetched contents stay in host memory. Contents about to be read are pinned and are not evicted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.contents import NO_CONTENT
from kvsim.records.record import NONE
from kvsim.rules.blocks.contents import add_content, drop_content, find_content, renew_content

if TYPE_CHECKING:
    from kvsim.records.contents import HostTier
    from kvsim.records.paged import RequestBlocks


def store(host: HostTier, key: int) -> None:
    """Store a content that has lost its last block on the GPU.

    If the content is stored already, it becomes the newest without a copy. If every stored content
    is pinned, none can be evicted, and the new content is dropped.
    """
    contents = host.contents
    k = find_content(contents, key)
    if k != NO_CONTENT:
        renew_content(contents, k)
        return
    if contents.queue.length >= host.num_blocks:
        k = contents.queue.head
        while k != NONE and contents.rows[k].pinned > 0:
            k = contents.rows[k].next
        if k == NONE:
            return
        drop_content(contents, k)
    add_content(contents, key)
    host.num_stored += 1


def pin(host: HostTier, own_blocks: RequestBlocks, first: int, stop: int, pinned: int) -> None:
    """Pin (1) or unpin (0) the contents of a request's blocks from ``first`` to ``stop``."""
    for place in range(first, stop):
        k = find_content(host.contents, own_blocks.keys[place])
        host.contents.rows[k].pinned = pinned
