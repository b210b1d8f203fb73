"""Nodes with window slots or a state, most recently used first; both are freed from the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE
from kvsim.rules.links import insert_after, push_front, remove

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def join_recent(tree: Radix, k: int, newer: int) -> None:
    """Insert node ``k`` right after node ``newer``, or at the front if that is NONE."""
    if newer == NONE:
        push_front(tree.recent, tree.recent_places, k)
    else:
        insert_after(tree.recent, tree.recent_places, k, newer)


def remove_from_recent(tree: Radix, k: int) -> None:
    remove(tree.recent, tree.recent_places, k)


def refresh_recent(tree: Radix, k: int) -> None:
    """Move the nodes of the window before a node's end to the front, the last node first."""
    passed, newer = 0, NONE
    while k != 0 and passed < tree.window + tree.pages.page_size:
        node = tree.nodes[k]
        if not node.is_tombstone:
            remove_from_recent(tree, k)
            join_recent(tree, k, newer)
            newer = k
        passed += node.span
        k = node.parent
