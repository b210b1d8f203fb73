"""The memory map of a radix cache: pages of the tree, pages of requests, and free pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.pages import page_after
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Node
    from kvsim.engines.sglang.records.scheduler import Progress
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def mark_radix(state: Replica, cached: int, internal: int, share: float) -> None:
    """Mark the use of each page, as shares of it: live, reserved, cached or free.

    Unmarked pages count as free. With ``share`` 1, the pages in use are marked. After painting, the
    caller clears these marks by a second call, with ``share`` 0 and the cause of free pages: most
    pages of a large pool are free, so to clear all pages would take longer.
    """
    tree = state.kv.radix
    k = tree.nodes[0].first_child
    while k != 0:
        node = tree.nodes[k]
        mark_node(state, node, cached, share)
        if node.first_child != 0:
            k = node.first_child
            continue
        while k != 0 and tree.nodes[k].next == 0:
            k = tree.nodes[k].parent
        k = tree.nodes[k].next if k != 0 else 0
    for k in range(state.num_requests):
        mine = state.engines.sglang.progress[k]
        if state.requests[k].status != FINISHED and mine.row != NONE:
            mark_own(state, state.requests[k], mine, internal, share)


def pool_bins(state: Replica) -> int:
    """Return the bins of the first pool: its share of the bytes, all if there is no other pool."""
    tree = state.kv.radix
    num_bytes = tree.pages.num_pages * tree.token_bytes
    total = num_bytes + tree.window_pages.num_pages * tree.window_bytes
    return state.num_bins * num_bytes // total if total > 0 else state.num_bins


def mark_node(state: Replica, node: Node, cached: int, share: float) -> None:
    """Mark the pages of a node; window pages come after all others.

    A node on the host only has no pages: its former pages are free, or belong to others.
    """
    if node.on_host_only:
        return
    kv, tree, page = state.kv, state.kv.radix, node.page
    for _ in range(node.span // tree.pages.page_size):
        if tree.window > 0 and not node.is_tombstone:
            at = tree.pages.num_pages + tree.windows[page]
            if node.num_window_locks > 0:
                kv.live_ends[at] = share
            else:
                kv.unused[at] = cached
        if node.num_locks > 0:
            kv.live_ends[page] = share
        else:
            kv.unused[page] = cached
        page = page_after(tree.pages, page)


def mark_own(state: Replica, request: Request, mine: Progress, unused: int, share: float) -> None:
    """Mark a request's own pages: slots that it has written, will write, and never writes."""
    kv, tree, page, size = state.kv, state.kv.radix, mine.page, state.kv.radix.pages.page_size
    written = request.num_computed_tokens - mine.num_shared
    last = max(request.max_slots - mine.num_shared, written)
    for k in range(mine.num_pages):
        kv.live_ends[page] = share * min(max(written - k * size, 0), size) / size
        kv.last_ends[page] = share * min(max(last - k * size, 0), size) / size
        kv.unused[page] = unused
        if tree.window > 0 and tree.windows[page] > 0:
            at = tree.pages.num_pages + tree.windows[page]
            kv.live_ends[at], kv.last_ends[at] = kv.live_ends[page], kv.last_ends[page]
            kv.unused[at] = unused
        page = page_after(tree.pages, page)
