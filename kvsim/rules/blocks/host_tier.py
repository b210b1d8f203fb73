"""Host memory behind the block pool: contents by key, the first of those put out leave first.

What is fetched stays, too. Contents that are about to be read are pinned, and cannot leave.
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
    """Take in a content that has lost its last block on the GPU.

    One that is held already counts as new but needs no copy; one for which only pinned contents
    could leave is dropped.
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
    """Pin the contents of some blocks of a request (1), or let them go (0)."""
    for place in range(first, stop):
        k = find_content(host.contents, own_blocks.keys[place])
        host.contents.rows[k].pinned = pinned
