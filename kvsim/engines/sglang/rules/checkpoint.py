"""Checkpoints: a request's tokens enter the tree after each prefill, and at its release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.held import (
    free_row,
    move_to_node,
    offer_pages,
    own_tokens,
    reset_progress,
)
from kvsim.engines.sglang.rules.states import free_holding, slot_at_end, slot_for_chunk
from kvsim.engines.sglang.rules.tree.locks import unlock_path
from kvsim.engines.sglang.rules.tree.pages import floor_page, free_chain, free_parts, return_chain
from kvsim.engines.sglang.rules.tree.slide import num_slid, slide_window
from kvsim.engines.sglang.rules.tree.state_slots import free_state
from kvsim.engines.sglang.rules.tree.states import put_state
from kvsim.engines.sglang.rules.tree.walk import cut_at_prompt

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.engines.sglang.records.scheduler import Progress
    from kvsim.engines.sglang.records.states import Holding
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def checkpoint(state: Replica, k: int, upto: int, goes_on: bool) -> None:
    """Insert a request's first tokens into the tree, and cut the tree at its prompt's end.

    With sliding windows the tree is not cut there. But if a request's match passed a node from
    which the request could not resume, it first inserts tokens only up to that node, so that a
    window stays before the node.
    """
    tree = state.kv.radix
    request, mine = state.requests[k], state.engines.sglang.progress[k]
    if not tree.enabled:
        return
    if tree.has_states:
        checkpoint_state(tree, request, mine, state.engines.sglang.held[k], upto)
        return
    size, known = tree.pages.page_size, min(upto, mine.num_known)
    reach = mine.branch + tree.ahead  # a key of n pairs spans n + 1 tokens
    branches = mine.num_shared < mine.branch and reach <= upto
    length = (min(known, reach) if branches else known) - tree.ahead
    if goes_on and tree.window > 0:
        slide_window(tree, mine, length - 1, 1)
    num_tokens = floor_page(length, size)
    last = offer_pages(tree, request, mine, num_tokens)
    prompt = floor_page(request.num_prompt_tokens - tree.ahead, size)
    if tree.window == 0 and 0 < prompt < num_tokens:
        cut_at_prompt(tree, last, prompt, request.priority + 1)
    move_to_node(tree, request, mine, last, num_tokens)
    if branches and num_tokens >= mine.branch:
        mine.branch = 0
        if goes_on:
            slide_window(tree, mine, known - tree.ahead - 1, 1)


def checkpoint_state(
    tree: Radix, request: Request, mine: Progress, held: Holding, upto: int
) -> None:
    """Insert a request's tokens up to its last saved state, and that state, if there is one."""
    num_tokens = min(upto, mine.num_known)
    if tree.states.num_places > 0:
        if held.depth == 0:
            return
        num_tokens = min(num_tokens, held.depth)
    slot = slot_for_chunk(tree, mine, held)
    if not insert_with_state(tree, request, mine, num_tokens, slot):
        free_state(tree.states, slot)
    held.depth = 0


def insert_with_state(
    tree: Radix, request: Request, mine: Progress, num_tokens: int, slot: int
) -> bool:
    """Insert a request's first tokens with a state; False if the tree has this state already."""
    num_tokens = floor_page(num_tokens, tree.pages.page_size)
    last = offer_pages(tree, request, mine, num_tokens)
    is_taken = put_state(tree, last, slot)
    move_to_node(tree, request, mine, last, num_tokens)
    return is_taken


def insert_last_state(state: Replica, k: int, owned: int) -> int:
    """Insert a finished request's tokens up to its last state; return the slot of that state."""
    request, mine, tree = state.requests[k], state.engines.sglang.progress[k], state.kv.radix
    slot = slot_at_end(state, k, owned) if tree.enabled else 0
    if slot == 0:
        return 0
    num_tokens = min(owned, state.engines.sglang.held[k].depth) if tree.states.num_places else owned
    return slot if insert_with_state(tree, request, mine, num_tokens, slot) else 0


def free_with_reserve(tree: Radix, request: Request, mine: Progress) -> None:
    """Free a request's own pages: first the pages of its tokens, then the reserve for drafts."""
    own = own_tokens(request, mine)
    behind = free_parts(tree, mine.page, 0, own, mine.dead - mine.num_shared)
    free_chain(tree, behind, mine.num_pages - -(-own // tree.pages.page_size))


def release_request(state: Replica, k: int, keeps: bool) -> None:
    """Free all that a request holds; with ``keeps``, its computed tokens stay in the tree."""
    request, mine, tree = state.requests[k], state.engines.sglang.progress[k], state.kv.radix
    given = 0
    if keeps:
        mine.num_known = request.num_tokens
        owned = min(request.num_computed_tokens, request.num_tokens)
        if tree.has_states:
            given = insert_last_state(state, k, owned)
        else:
            checkpoint(state, k, owned, False)
    if state.engines.sglang.speculation.is_on and mine.num_slots > 0:
        free_with_reserve(tree, request, mine)
    elif tree.window > 0:
        slots = mine.num_pages * tree.pages.page_size
        free_parts(tree, mine.page, 0, slots, mine.dead - mine.num_shared)
    else:
        return_chain(tree.pages, mine.page, mine.last_page, mine.num_pages)
    tree.num_slid_tokens -= num_slid(mine)
    tree.num_own_pages -= mine.num_pages
    tree.num_own_tokens -= own_tokens(request, mine)
    tree.num_internal -= mine.num_internal
    unlock_path(tree, mine.node, mine.edge)
    if tree.has_states:
        free_holding(tree.states, state.engines.sglang.held[k], given)
    free_row(state, mine)
    reset_progress(request, mine)
