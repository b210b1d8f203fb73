"""Slots of states: the ring of free slots, the group reserved for a pass, the slots of nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.recent import join_recent, remove_from_recent
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.engines.sglang.records.states import States


def allocate_state(states: States) -> int:
    """Allocate a slot, from the group first, then from the ring; 0 if none is free."""
    if states.num_grouped > 0:
        slot = states.group[states.group_at]
        states.group_at += 1
        states.num_grouped -= 1
        return slot
    if states.num_left == 0:
        return 0
    slot = states.free[states.first]
    states.first = (states.first + 1) % states.num_slots
    states.num_left -= 1
    return slot


def free_state(states: States, slot: int) -> None:
    states.free[(states.first + states.num_left) % states.num_slots] = slot
    states.num_left += 1


def open_states(states: States, count: int) -> None:
    """Reserve ``count`` slots of the ring as the group of a pass, if enough are free."""
    if count > states.num_left:
        return
    for at in range(count):
        states.group[at] = allocate_state(states)
    states.group_at = 0
    states.num_grouped = count


def close_states(states: States) -> None:
    """Return the unused slots of the group to the end of the ring."""
    while states.num_grouped > 0:
        free_state(states, allocate_state(states))


def lose_state(tree: Radix, k: int) -> None:
    """Free the state of a node, which stays in the tree."""
    node = tree.nodes[k]
    free_state(tree.states, node.state)
    node.state = 0
    remove_from_recent(tree, k)


def touch_state(tree: Radix, k: int) -> None:
    """Move a node with a state to the front of the recently used nodes."""
    if k != 0:
        remove_from_recent(tree, k)
        join_recent(tree, k, NONE)
