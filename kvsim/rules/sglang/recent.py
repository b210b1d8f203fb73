"""The nodes with window slots, the one used last first: the other end loses its slots first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.records.radix import Radix


def join_recent(tree: Radix, k: int, newer: int) -> None:
    """Put a node right behind another one, or to the front if that is 0."""
    node = tree.nodes[k]
    node.newer = newer
    node.older = tree.newest if newer == 0 else tree.nodes[newer].older
    if newer == 0:
        tree.newest = k
    else:
        tree.nodes[newer].older = k
    if node.older == 0:
        tree.oldest = k
    else:
        tree.nodes[node.older].newer = k


def leave_recent(tree: Radix, k: int) -> None:
    """Take a node out."""
    node = tree.nodes[k]
    if node.newer == 0:
        tree.newest = node.older
    else:
        tree.nodes[node.newer].older = node.older
    if node.older == 0:
        tree.oldest = node.newer
    else:
        tree.nodes[node.older].newer = node.newer


def refresh_recent(tree: Radix, k: int) -> None:
    """Bring the window before the end of a node to the front, the end first."""
    passed, newer = 0, 0
    while k != 0 and passed < tree.window + tree.pages.page_size:
        node = tree.nodes[k]
        if not node.is_tombstone:
            leave_recent(tree, k)
            join_recent(tree, k, newer)
            newer = k
        passed += node.span
        k = node.parent
