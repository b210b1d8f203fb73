"""Single operations on the radix tree, without a scheduler, as in recorded cases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.host.load import load_path, unlock_finished_copies
from kvsim.engines.sglang.rules.tree.evict import evict_for, evict_tokens
from kvsim.engines.sglang.rules.tree.locks import lock_path, unlock_path
from kvsim.engines.sglang.rules.tree.pages import allocate_chain, floor_page
from kvsim.engines.sglang.rules.tree.state_slots import allocate_state, free_state
from kvsim.engines.sglang.rules.tree.states import evict_states, put_state
from kvsim.engines.sglang.rules.tree.walk import insert_key, match_prefix
from kvsim.records.engine import EVICT, EVICT_STATES, INSERT, LOAD, LOCK, MATCH, SEE_COPIES, UNLOCK
from kvsim.rules.arrival import describe

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


#: Results of an insert: no free pages, or the last node has a state already.
NO_ROOM, EXISTS = 1, 2


def operate(state: Replica, command: int, argument: int) -> int:
    """Execute an operation; ``argument`` is a row of the trace, a node, or a number of tokens.

    Return the tokens evicted or loaded, the states evicted, or the result of an insert (0:
    success). ``tree.node`` and ``tree.num_found`` are the last node and the tokens of a match.
    """
    tree, request = state.kv.radix, state.probe
    if command == LOCK:
        lock_path(tree, argument)
    elif command == UNLOCK:
        unlock_path(tree, argument, 1 if tree.has_states else 0)
    elif command == EVICT:
        return evict_tokens(tree, argument)
    elif command == EVICT_STATES:
        return evict_states(tree, argument)
    elif command == LOAD:
        return load_path(tree, argument)
    elif command == SEE_COPIES:
        unlock_finished_copies(tree, state.clock)
    else:
        describe(state, request, argument)
        tree.node = 0
        tree.num_found = 0
        if command in (MATCH, INSERT):
            match_prefix(tree, request, request.num_prompt_tokens)
        if command != MATCH:
            return insert_behind(tree, request, tree.node, tree.num_found)
    return 0


def insert_behind(tree: Radix, request: Request, node: int, matched: int) -> int:
    """Allocate pages for the unmatched tokens and insert all; NO_ROOM if there are not enough.

    With states the last node gets a state; EXISTS is returned if it has one already.
    """
    size = tree.pages.page_size
    num_tokens = floor_page(request.num_prompt_tokens, size)
    edge = lock_path(tree, node)
    evict_for(tree, num_tokens - matched)
    if tree.pages.num_unused_slots < num_tokens - matched:
        unlock_path(tree, node, edge)
        return NO_ROOM
    tree.page = tree.pages.first
    tree.num_pages = (num_tokens - matched) // size
    tree.last_page = allocate_chain(tree.pages, tree.num_pages)
    tree.before_last = 0
    slot = 0
    if tree.has_states:
        slot = allocate_state(tree.states)
        if slot == 0:
            evict_states(tree, 1)
            slot = allocate_state(tree.states)
    insert_key(tree, request, num_tokens, node, matched, request.priority)
    if tree.has_states and not put_state(tree, tree.node, slot):
        free_state(tree.states, slot)
        unlock_path(tree, node, edge)
        return EXISTS
    unlock_path(tree, node, edge)
    return 0
