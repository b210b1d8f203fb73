"""Policy dfs-weight: depth-first, the subtree with the most waiting requests first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.records.engine import Replica


def weigh_waiting(state: Replica, by: int) -> None:
    """Add a weight to the matched node of each waiting request, and to its ancestors."""
    k = state.waiting.head
    while k != NONE:
        at = state.engines.sglang.progress[k].matched
        while at != 0:
            state.kv.radix.nodes[at].weight += by
            at = state.kv.radix.nodes[at].parent
        k = state.requests[k].next


def is_visited_before(tree: Radix, a: int, b: int) -> bool:
    """Return True if a depth-first walk, heavy children first, visits a node before another."""
    child_a, child_b = a, b
    while a != b:
        end_a, end_b = tree.nodes[a].end, tree.nodes[b].end
        if end_a >= end_b:
            child_a = a
            a = tree.nodes[a].parent
        if end_b >= end_a:
            child_b = b
            b = tree.nodes[b].parent
    if child_a == a or child_b == b:  # one node is above the other, or both are the same
        return child_a != a
    if tree.nodes[child_a].weight != tree.nodes[child_b].weight:
        return tree.nodes[child_a].weight > tree.nodes[child_b].weight
    return tree.nodes[child_a].number < tree.nodes[child_b].number
