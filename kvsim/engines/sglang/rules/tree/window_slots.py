"""Window slots of nodes: the slots of sliding-window layers, in a separate pool.

A node without window slots is a tombstone: a match can pass through it, but not end there. A lock
covers the window before its node's end; a mark on a node records where that window begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.pages import free_windows
from kvsim.engines.sglang.rules.tree.recent import join_recent, remove_from_recent
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def gain_windows(tree: Radix, k: int) -> None:
    """Record that a tombstone's pages now have window slots."""
    node = tree.nodes[k]
    node.is_tombstone = False
    if node.num_window_locks == 0:
        tree.window_evictable += node.span
    else:
        tree.window_protected += node.span
    join_recent(tree, k, NONE)


def lose_windows(tree: Radix, k: int) -> None:
    """Record that an unlocked node loses its window slots."""
    tree.nodes[k].is_tombstone = True
    tree.window_evictable -= tree.nodes[k].span
    remove_from_recent(tree, k)


def bury(tree: Radix, k: int) -> None:
    """Free the window slots of a node, which stays in the tree."""
    node = tree.nodes[k]
    lose_windows(tree, k)
    free_windows(tree, node.page, node.span // tree.pages.page_size)


def split_windows(tree: Radix, k: int, new: int) -> None:
    """Move part of a node's locks, its mark, and its position in ``recent`` to its new parent."""
    child, parent = tree.nodes[k], tree.nodes[new]
    parent.num_window_locks = child.num_window_locks
    parent.edge = child.edge
    child.edge = 0
    parent.is_tombstone = child.is_tombstone
    if not parent.is_tombstone:
        join_recent(tree, new, k)


def lock_window(tree: Radix, k: int) -> int:
    """Lock the window before the end of a node; return the mark at its start, 0 for none."""
    passed = 0
    while k != 0:
        node = tree.nodes[k]
        if node.num_window_locks == 0 and not node.is_tombstone:
            tree.window_evictable -= node.span
            tree.window_protected += node.span
        node.num_window_locks += 1
        passed += node.span
        if passed >= tree.window:
            if node.edge == 0:
                tree.num_edges += 1
                node.edge = tree.num_edges
            return node.edge
        k = node.parent
    return 0


def unlock_window(tree: Radix, k: int, edge: int) -> None:
    """Unlock a window, up to its mark, or to the root if it has none."""
    while k != 0:
        node = tree.nodes[k]
        node.num_window_locks -= 1
        if node.num_window_locks == 0 and not node.is_tombstone:
            tree.window_protected -= node.span
            tree.window_evictable += node.span
        k = 0 if edge != 0 and node.edge == edge else node.parent
