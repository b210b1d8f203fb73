"""Host copies of nodes: their pages, the order of their eviction, and moves between the tiers.

A node has slots on the GPU, a copy on the host, or both. No node with slots on the GPU is below a
node without them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import WRITE_BACK
from kvsim.engines.sglang.rules.tree.leaves import remove_from_heap, settle_leaf
from kvsim.engines.sglang.rules.tree.pages import (
    allocate_chain,
    free_whole,
    page_after,
    page_behind,
    return_chain,
)
from kvsim.engines.sglang.rules.tree.pieces import copy_pieces, cut_pieces
from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def allocate_copy(tree: Radix, k: int) -> None:
    """Allocate host pages for a node's copy; enough must be free."""
    node, size, pages = tree.nodes[k], tree.pages.page_size, tree.host_pages
    node.host_page = pages.first
    node.host_last = allocate_chain(pages, node.span // size)
    first, copy = node.page * size, node.host_page
    copy_pieces(tree.pieces, first, tree.host_pieces, pages, copy, node.span, size)
    node.has_copy = True
    join_copies(tree, k)


def publish_copy(tree: Radix, k: int) -> None:
    """Log that a node was copied to the host, if events are emitted."""
    if not tree.emits_events:
        return
    told, node = tree.told[tree.num_told], tree.nodes[k]
    told.row = node.row
    told.start = node.start
    told.stop = node.end
    tree.num_told += 1


def drop_copy(tree: Radix, k: int) -> int:
    """Free a node's pages on the host; return its number of tokens."""
    node, size = tree.nodes[k], tree.pages.page_size
    return_chain(tree.host_pages, node.host_page, node.host_last, node.span // size)
    node.has_copy = False
    remove_from_copies(tree, k)
    return node.span


def join_copies(tree: Radix, k: int) -> None:
    """Under write_back, append a node on both tiers to the queue of copies that may be dropped.

    A node that is already in the queue keeps its position.
    """
    node = tree.nodes[k]
    if tree.write_policy != WRITE_BACK or node.is_queued:
        return
    node.is_queued = True
    append(tree.queued, tree.queued_places, k)


def remove_from_copies(tree: Radix, k: int) -> None:
    """Remove a node from the queue of copies, if it is queued."""
    node = tree.nodes[k]
    if node.is_queued:
        node.is_queued = False
        remove(tree.queued, tree.queued_places, k)


def split_copy(tree: Radix, k: int, new: int, num_pages: int) -> None:
    """Move part of a node's host copy, and its state on the host, to its new parent."""
    child, parent, pages = tree.nodes[k], tree.nodes[new], tree.host_pages
    parent.on_host_only = child.on_host_only
    parent.has_copy = child.has_copy
    parent.host_page = child.host_page
    parent.num_here = 0 if child.on_host_only else 1
    parent.is_pending = child.is_pending
    parent.num_host_locks = child.num_host_locks
    if child.has_copy:
        size, last = tree.pages.page_size, page_behind(pages, child.host_page, num_pages - 1)
        parent.host_last = last
        child.host_page = page_after(pages, last)
        slot, behind = parent.host_page * size, child.host_page * size
        cut_pieces(tree.host_pieces, slot, num_pages * size, behind)
    if child.is_queued and not child.on_host_only:
        join_copies(tree, new)


def free_device_copy(tree: Radix, k: int) -> None:
    """Free the GPU slots of a leaf with a copy, so that it is on the host only."""
    node = tree.nodes[k]
    free_whole(tree, node.page, node.last_page, node.span // tree.pages.page_size)
    tree.num_evictable -= node.span
    tree.num_moved += 1
    if node.place > 0:
        remove_from_heap(tree, k)
    node.on_host_only = True
    tree.nodes[node.parent].num_here -= 1
    settle_leaf(tree, k)
    settle_leaf(tree, node.parent)


def enter_device(tree: Radix, k: int, page: int, last_page: int) -> None:
    """Attach a chain of pages to a node that is on the host only; its copy stays."""
    node, size = tree.nodes[k], tree.pages.page_size
    if node.place > 0:
        remove_from_heap(tree, k)
    node.on_host_only = False
    node.page = page
    node.last_page = last_page
    slot = node.host_page * size
    copy_pieces(tree.host_pieces, slot, tree.pieces, tree.pages, page, node.span, size)
    if node.num_locks > 0:
        tree.num_protected += node.span
    else:
        tree.num_evictable += node.span
    tree.num_moved += 1
    tree.nodes[node.parent].num_here += 1
    settle_leaf(tree, k)
    settle_leaf(tree, node.parent)
