"""Memory of a request: a path of the tree, the request's own pages after that path, and a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.tree.locks import lock_path, unlock_path
from kvsim.engines.sglang.rules.tree.pages import (
    allocate_chain,
    allocate_page,
    link_page,
    map_windows,
)
from kvsim.engines.sglang.rules.tree.slide import num_slid
from kvsim.engines.sglang.rules.tree.walk import insert_key
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED
from kvsim.rules.batch import recycle

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.engines.sglang.records.scheduler import Progress
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def append_page(tree: Radix, mine: Progress) -> None:
    """Append a page to a request; at least one page must be free."""
    page = allocate_page(tree.pages)
    if tree.window > 0:
        tree.windows[page] = allocate_page(tree.window_pages)
    if mine.num_pages == 0:
        mine.page = page
    else:
        link_page(tree.pages, mine.last_page, page)
    mine.before_last = mine.last_page if mine.num_pages > 0 else 0
    mine.last_page = page
    mine.num_pages += 1
    tree.num_own_pages += 1


def append_pages(tree: Radix, mine: Progress, count: int) -> None:
    """Append pages to a request, in the order of the free chain; enough must be free."""
    first = tree.pages.first
    last = allocate_chain(tree.pages, count)
    if tree.window > 0:
        map_windows(tree, first, count)
    if mine.num_pages == 0:
        mine.page = first
    else:
        link_page(tree.pages, mine.last_page, first)
    mine.before_last = 0
    mine.last_page = last
    mine.num_pages += count
    tree.num_own_pages += count


def extend_slots(tree: Radix, request: Request, mine: Progress, end: int) -> None:
    """Extend a request's slots up to token ``end``: the rest of its last page, then new pages."""
    size = tree.pages.page_size
    slots = mine.num_shared + mine.num_pages * size
    recounts = size > 1 and (slots < end or end >= request.end)
    if end - slots > size:
        append_pages(tree, mine, -(-(end - slots) // size))
    elif end > slots:
        append_page(tree, mine)
    tree.num_own_tokens += end - request.num_computed_tokens
    request.num_computed_tokens = end
    if recounts:
        count_internal(tree, request, mine)


def count_internal(tree: Radix, request: Request, mine: Progress) -> None:
    """Count the slots of a request's last page that it will never use."""
    tree.num_internal -= mine.num_internal
    slots = mine.num_shared + mine.num_pages * tree.pages.page_size
    mine.num_internal = max(slots - max(request.max_slots, request.num_computed_tokens), 0)
    tree.num_internal += mine.num_internal


def own_tokens(request: Request, mine: Progress) -> int:
    """Return the tokens of a request after its path in the tree."""
    return request.num_computed_tokens - mine.num_shared


def offer_pages(tree: Radix, request: Request, mine: Progress, num_tokens: int) -> int:
    """Insert a request's first tokens into the tree; return their last node."""
    tree.page = mine.page
    tree.last_page = mine.last_page
    tree.before_last = mine.before_last
    tree.num_pages = mine.num_pages
    tree.dead = mine.dead
    insert_key(tree, request, num_tokens, mine.node, mine.num_inserted, request.priority)
    mine.num_inserted = max(mine.num_inserted, num_tokens)
    return tree.node


def move_to_node(tree: Radix, request: Request, mine: Progress, last: int, num_tokens: int) -> None:
    """Let a request hold its tokens up to a node in the tree instead of in its own pages."""
    unlock_path(tree, mine.node, mine.edge)
    mine.edge = lock_path(tree, last)
    shed_pages(tree, mine, num_tokens - mine.num_shared)
    mine.page = tree.page
    mine.node = last
    count_internal(tree, request, mine)


def shed_pages(tree: Radix, mine: Progress, num_tokens: int) -> None:
    """Transfer the first ``num_tokens`` tokens of a request's own pages to the tree."""
    num_pages = num_tokens // tree.pages.page_size
    tree.num_slid_tokens -= num_slid(mine)
    mine.num_shared += num_tokens
    tree.num_slid_tokens += num_slid(mine)
    mine.num_pages -= num_pages
    tree.num_own_pages -= num_pages
    tree.num_own_tokens -= num_tokens


def reset_progress(request: Request, mine: Progress) -> None:
    """Reset the progress of a request, which then has no computed tokens."""
    mine.num_pages = 0
    mine.num_slots = 0
    mine.num_internal = 0
    mine.num_shared = 0
    mine.num_inserted = 0
    mine.node = 0
    mine.edge = 0
    mine.dead = 0
    mine.branch = 0
    mine.num_middle = 0
    mine.num_extends = 0
    mine.prefix = 0
    request.num_computed_tokens = 0


def allocate_rows(state: Replica, count: int) -> None:
    """Take the last free rows for the new requests of a batch, in their order."""
    first = state.engines.sglang.num_rows - count
    state.engines.sglang.num_rows = first
    at = first
    for place in range(state.engines.sglang.num_admitted):
        mine = state.engines.sglang.progress[state.engines.sglang.admitted[place]]
        if mine.row == NONE:
            mine.row = state.engines.sglang.rows[at]
            at += 1
    state.num_running += count


def free_row(state: Replica, mine: Progress) -> None:
    state.engines.sglang.rows[state.engines.sglang.num_rows] = mine.row
    state.engines.sglang.num_rows += 1
    state.num_running -= 1
    mine.row = NONE


def reuse_record(state: Replica, k: int) -> None:
    """Reuse the record of an ended request, unless a batch still names it."""
    if state.requests[k].status == FINISHED and not state.engines.sglang.progress[k].is_listed:
        recycle(state, k)
