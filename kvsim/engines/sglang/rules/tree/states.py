"""States in the radix tree: a node may hold the state after the tokens from the root to its end.

``tree.recent`` lists the nodes with a state, most recently used first. Free slots form a ring: they
are taken from its front and return to its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.evict import evict_leaf
from kvsim.engines.sglang.rules.tree.leaves import settle_leaf
from kvsim.engines.sglang.rules.tree.nodes import tick
from kvsim.engines.sglang.rules.tree.recent import join_recent, remove_from_recent
from kvsim.engines.sglang.rules.tree.state_slots import lose_state
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def put_state(tree: Radix, k: int, slot: int) -> bool:
    """Put a state on a node, and mark the node as used; False if it has one, or is the root.

    If False, the caller keeps the slot.
    """
    node = tree.nodes[k]
    if k == 0:
        return False
    node.last_access = tick(tree)
    if node.place > 0:
        settle_leaf(tree, k)
    is_new = node.state == 0
    if is_new:
        node.state = slot
    else:
        remove_from_recent(tree, k)
    join_recent(tree, k, NONE)
    if is_new and tree.states.most_per_path >= 0:
        thin_path(tree, k)
    return is_new


def thin_path(tree: Radix, last: int) -> None:
    """Drop states on the path to a node, from the root down, until ``most_per_path`` are left.

    Locked states, and states at which the tree branches, stay.
    """
    excess, k = -tree.states.most_per_path, last
    while k != 0:
        excess += tree.nodes[k].state > 0
        k = tree.nodes[k].parent
    while excess > 0:
        top, k = 0, tree.nodes[last].parent
        while k != 0:
            node = tree.nodes[k]
            branches = node.first_child != node.last_child
            if node.state > 0 and node.num_state_locks == 0 and not branches:
                top = k
            k = node.parent
        if top == 0:
            return
        lose_state(tree, top)
        excess -= 1


def evict_states(tree: Radix, count: int) -> int:
    """Free the least recently used states, and evict leaves whole; return the number of states."""
    k, evicted = tree.recent.tail, 0
    while k != NONE and evicted < count:
        node, at = tree.nodes[k], k
        k = tree.recent_places[k].previous
        if node.num_state_locks > 0:
            continue
        if node.place > 0:
            evict_leaf(tree, at)
        else:
            lose_state(tree, at)
        evicted += 1
    return evicted
