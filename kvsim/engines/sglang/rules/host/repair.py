"""Window slots that an insert adds to the tree: to tombstones on its path and to its new leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.nodes import split_node
from kvsim.engines.sglang.rules.tree.pages import (
    ceil_page,
    free_parts,
    free_whole,
    page_after,
    page_behind,
)
from kvsim.engines.sglang.rules.tree.pieces import copy_pieces
from kvsim.engines.sglang.rules.tree.window_slots import gain_windows

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def share_windows(tree: Radix, k: int) -> None:
    """Free an insert's pages that a node already has; a tombstone takes their window slots.

    The pages begin at ``tree.page``, which then points after them.
    """
    start, end, size = tree.nodes[k].start, tree.nodes[k].end, tree.pages.page_size
    first, live = tree.page, max(start, tree.dead)
    if not tree.nodes[k].is_tombstone or live >= end:
        tree.page = free_parts(tree, first, start, end, tree.dead)
        return
    if live > start:
        split_node(tree, k, live - start)
    tree.page = revive(tree, k, page_behind(tree.pages, first, (live - start) // size))
    free_parts(tree, first, start, live, live)


def revive(tree: Radix, k: int, page: int) -> int:
    """Move window slots of a request's equal pages to a tombstone; return the page after them.

    A node without locks takes over those pages, and its own are freed; else it keeps its own
    pages, since others read them.
    """
    node, size = tree.nodes[k], tree.pages.page_size
    mine, num_pages = node.page, node.span // size
    last = page_behind(tree.pages, page, num_pages - 1)
    behind = page_after(tree.pages, last)
    if node.num_locks == 0:
        copy_pieces(tree.pieces, mine * size, tree.pieces, tree.pages, page, node.span, size)
        free_whole(tree, mine, node.last_page, num_pages)
        node.page = page
        node.last_page = last
        tree.num_moved += 1
    else:
        theirs = page
        for _ in range(num_pages):
            tree.windows[mine] = tree.windows[theirs]
            tree.windows[theirs] = 0
            mine = page_after(tree.pages, mine)
            theirs = page_after(tree.pages, theirs)
        free_whole(tree, page, last, num_pages)
    gain_windows(tree, k)
    return behind


def cut_windows(tree: Radix, k: int) -> None:
    """Split a new leaf into a tombstone, for tokens without window slots, and one window.

    Tokens between these two become a separate node, so that its slots can be freed before those of
    the window.
    """
    node, longest = tree.nodes[k], ceil_page(tree.window, tree.pages.page_size)
    live = max(node.start, tree.dead)
    if live >= node.end:
        return
    if live > node.start:
        split_node(tree, k, live - node.start)
    if node.span > longest:
        gain_windows(tree, split_node(tree, k, node.span - longest))
    gain_windows(tree, k)
