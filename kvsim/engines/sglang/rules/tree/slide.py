"""Moving windows: requests free the window slots that no later token sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.pages import (
    ceil_page,
    close_groups,
    floor_page,
    free_windows,
    open_groups,
    page_behind,
)

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.engines.sglang.records.scheduler import Progress
    from kvsim.records.engine import Replica

#: Decoded tokens after which a window moves.
DECODE_GAP = 128


def num_slid(mine: Progress) -> int:
    """Return the tokens of a request in its own pages that have no window slots."""
    return max(mine.dead - mine.num_shared, 0)


def slide_window(tree: Radix, mine: Progress, upto: int, gap: int) -> None:
    """Free the window slots more than a window before token ``upto``, if at least ``gap`` are due.

    With a tree a window of whole pages stays, since the tree keeps pages.
    """
    size = tree.pages.page_size
    if upto - tree.window < mine.dead + gap:
        return
    kept = ceil_page(max(tree.window, size), size) if tree.enabled else tree.window
    first, page = mine.num_shared, mine.page
    if mine.dead > first:
        first, page = mine.dead, mine.dead_page
    mine.dead = floor_page(max(first, upto - kept), size)
    num_pages = (mine.dead - first) // size
    free_windows(tree, page, num_pages)
    mine.dead_page = page_behind(tree.pages, page, num_pages)
    tree.num_slid_tokens += mine.dead - first


def slide_decodes(state: Replica) -> None:
    """Move the windows of running requests that have advanced enough; free slots as one block."""
    scheduler, tree = state.engines.sglang, state.kv.radix
    open_groups(tree)
    for place in range(scheduler.num_running):
        k = scheduler.running[place]
        mine, last = scheduler.progress[k], state.requests[k].num_tokens - 1
        if mine.has_decoded and last - tree.window >= mine.dead + DECODE_GAP:
            slide_window(tree, mine, last, 1)
        mine.has_decoded = True
    close_groups(tree)


def slide_prefills(state: Replica) -> None:
    """Without a tree, move the windows of the requests being prefilled.

    While the previous chunk is still in flight, its window stays.
    """
    scheduler, tree = state.engines.sglang, state.kv.radix
    for place in range(scheduler.num_admitted):
        mine, behind = scheduler.progress[scheduler.admitted[place]], 0
        if state.limits.depth > 1:
            behind = scheduler.chunk_size
        slide_window(tree, mine, mine.prefix - behind, 1)
