"""Locks: a request, or a copy in flight, locks a node and all nodes above it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import NO_HOST
from kvsim.engines.sglang.rules.tree.leaves import settle_leaf
from kvsim.engines.sglang.rules.tree.window_slots import lock_window, unlock_window

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def lock_path(tree: Radix, k: int) -> int:
    """Lock a node and all above it; return the mark at the start of its window, 0 for none.

    With states, the mark 1 means that the node's state is locked, too.
    """
    end = k
    while k != 0:
        node = tree.nodes[k]
        if node.num_locks == 0 and not node.on_host_only:
            tree.num_evictable -= node.span
            tree.num_protected += node.span
        node.num_locks += 1
        if tree.write_policy != NO_HOST:  # a leaf of the GPU may have nodes on the host below it
            settle_leaf(tree, k)
        k = node.parent
    settle_leaf(tree, end)
    if tree.has_states and end != 0:
        tree.nodes[end].num_state_locks += 1
        return 1
    return lock_window(tree, end) if tree.window > 0 else 0


def unlock_path(tree: Radix, k: int, edge: int) -> None:
    """Unlock a node and its ancestors, and the window up to a mark."""
    end = k
    if tree.window > 0:
        unlock_window(tree, end, edge)
    if tree.has_states and edge != 0:
        tree.nodes[end].num_state_locks -= 1
    while k != 0:
        node = tree.nodes[k]
        node.num_locks -= 1
        if node.num_locks == 0 and not node.on_host_only:
            tree.num_protected -= node.span
            tree.num_evictable += node.span
        if tree.write_policy != NO_HOST:
            settle_leaf(tree, k)
        k = node.parent
    settle_leaf(tree, end)
