"""A recount of a radix cache's pool of states: slots, locks, and the list of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.kv.radix_check import holders, listed_nodes

if TYPE_CHECKING:
    from kvsim.engines.sglang.kv.radix_check import Seen
    from kvsim.engines.sglang.records.states import States
    from kvsim.records.engine import Replica


def free_states(states: States) -> list[int]:
    """Return the free slots of states in the order of their allocation."""
    places = range(states.first, states.first + states.num_left)
    return [states.free[place % states.num_slots] for place in places]


def check_states_held(state: Replica, nodes: list[Seen]) -> None:
    """Recount the slots of states, free or held by nodes and requests, and their locks.

    Raises
    ------
    RuntimeError
        Naming the count or mark that is wrong.
    """
    tree = state.kv.radix
    in_tree = {seen.place: tree.nodes[seen.place].state for seen in nodes}
    slots = free_states(tree.states) + [slot for slot in in_tree.values() if slot]
    locks = dict.fromkeys(in_tree, 0)
    for k in holders(state):
        held, mine = state.engines.sglang.held[k], state.engines.sglang.progress[k]
        slots += [slot for slot in (held.own, held.first, held.second) if slot]
        if mine.node and mine.edge:
            locks[mine.node] += 1
    if sorted(slots) != list(range(1, tree.states.num_slots + 1)):
        raise RuntimeError(
            f"invariants 2 and 4: {len(slots)} free and used state slots, {len(set(slots))} "
            f"distinct, in a pool of {tree.states.num_slots}"
        )
    if any(tree.nodes[place].num_state_locks != count for place, count in locks.items()):
        raise RuntimeError("invariant 3: state locks are miscounted")
    if listed_nodes(tree, len(nodes)) != sorted(place for place, slot in in_tree.items() if slot):
        raise RuntimeError("the list of nodes with states is wrong")
