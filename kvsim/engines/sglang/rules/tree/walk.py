"""Walking down the radix tree along a request: match, insert, and the split at a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import NO_HOST, WRITE_BACK
from kvsim.engines.sglang.rules.host.backup import write_through
from kvsim.engines.sglang.rules.host.cache import enter_device, join_copies
from kvsim.engines.sglang.rules.host.repair import cut_windows, share_windows
from kvsim.engines.sglang.rules.tree.leaves import settle_leaf
from kvsim.engines.sglang.rules.tree.nodes import (
    join_siblings,
    name_node,
    new_node,
    split_node,
    tick,
)
from kvsim.engines.sglang.rules.tree.pages import floor_page, free_chain, page_after, page_behind
from kvsim.engines.sglang.rules.tree.pieces import name_tokens, num_common, seek
from kvsim.engines.sglang.rules.tree.recent import refresh_recent
from kvsim.engines.sglang.rules.tree.state_slots import touch_state
from kvsim.rules.blocks.keys import FIRST_KEY, mix, span_of

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.records.request import Request


def child_key(tree: Radix, request: Request, parent: int, salt: int) -> int:
    """Compute the key of the child with the request's next page, as ``node_key`` does."""
    content, start, length = span_of(request, tree.segment)
    key = mix(mix(FIRST_KEY, parent), salt)
    key = mix(mix(key, content), start + tree.offset)
    segment, last = tree.segment, tree.offset + tree.pages.page_size - 1
    while last >= length:
        last -= length
        segment += 1
        content, start, length = span_of(request, segment)
    return mix(mix(key, content), start + last)


def root_salt(tree: Radix, request: Request) -> int:
    """Return the salt of the key of the first node on a request's path.

    With pairs of tokens as keys, the tree holds the second token of each pair; the salt then
    includes the prompt's first token.
    """
    if tree.ahead == 0:
        return request.cache_salt
    content, start, _ = span_of(request, 0)
    return mix(mix(request.cache_salt, content), start)


def step_down(tree: Radix, request: Request, parent: int, left: int) -> int:
    """Return the child that begins with the request's next page, 0 if there is none.

    ``left`` is the number of tokens left to walk; ``tree.num_same`` is set to the shared tokens.
    """
    tree.num_same = 0
    if left == 0:
        return 0
    salt = root_salt(tree, request) if parent == 0 else 0
    key = child_key(tree, request, parent, salt)
    k = tree.buckets[key & tree.bucket_mask]
    while k != 0:
        node = tree.nodes[k]
        if node.key == key and node.parent == parent:
            most = min(left, node.span)
            if node.on_host_only:
                tree.num_same = num_common(tree, tree.host_pieces, request, node.host_page, most)
            else:
                tree.num_same = num_common(tree, tree.pieces, request, node.page, most)
            if tree.num_same > 0:
                return k
        k = node.chain
    return 0


def match_prefix(tree: Radix, request: Request, num_tokens: int) -> None:
    """Find the longest prefix of a request's first tokens; set ``tree.node``, ``tree.num_found``.

    A node that matches only in part is split there, and the whole path is touched. With sliding
    windows a request can resume only after a whole window, with states only at a node with a state.
    Tokens that are on the host only extend the prefix to ``tree.best``, and ``tree.num_walked``
    includes them.
    """
    tree.node = 0
    tree.best = 0
    tree.num_found = 0
    tree.num_walked = 0
    left = floor_page(num_tokens - tree.ahead, tree.pages.page_size)
    if not tree.enabled or left <= 0:
        return
    seek(tree, request, 0, tree.ahead)
    child, run, part = step_down(tree, request, 0, left), tree.window, False
    while child != 0:
        same = tree.num_same
        left -= same
        tree.num_walked += same
        part = same < tree.nodes[child].span
        if part:
            child = split_node(tree, child, same)
        run = 0 if tree.nodes[child].is_tombstone else run + same
        if run >= tree.window and not (tree.has_states and tree.nodes[child].state == 0):
            tree.best = child
            if not tree.nodes[child].on_host_only:
                tree.num_found = tree.num_walked
                tree.node = child
        child = 0 if part else step_down(tree, request, child, left)
    touch_path(tree, tree.best)
    if tree.window > 0:
        refresh_recent(tree, tree.node)
    if tree.has_states:
        touch_state(tree, tree.node)


def count_match(tree: Radix, request: Request) -> int:
    """Count the cached tokens of a prompt on the GPU and on both tiers. Does not mutate.

    The number for both tiers is left in ``tree.num_walked``.
    """
    tree.num_walked = 0
    most = request.num_tokens - 1 - tree.ahead
    left, found, walked = floor_page(most, tree.pages.page_size), 0, 0
    if not tree.enabled or left <= 0:
        return 0
    seek(tree, request, 0, tree.ahead)
    child, run = step_down(tree, request, 0, left), tree.window
    while child != 0:
        walked += tree.num_same
        left -= tree.num_same
        run = 0 if tree.nodes[child].is_tombstone else run + tree.num_same
        lacks_state = tree.has_states and tree.nodes[child].state == 0
        lacks_state = lacks_state or (tree.has_states and tree.num_same < tree.nodes[child].span)
        if run >= tree.window and not tree.nodes[child].on_host_only and not lacks_state:
            found = walked
        if tree.num_same < tree.nodes[child].span:
            break
        child = step_down(tree, request, child, left)
    tree.num_walked = walked
    return found


def touch_path(tree: Radix, k: int) -> None:
    """Touch a node and all nodes above it."""
    now, end = tick(tree), k
    while k != 0:
        tree.nodes[k].last_access = now
        if tree.nodes[k].place > 0:
            settle_leaf(tree, k)
        k = tree.nodes[k].parent
    tree.nodes[0].last_access = now
    settle_leaf(tree, end)


def pass_node(tree: Radix, k: int, num_tokens: int, inserted: int, priority: int) -> None:
    """Count an insert of ``num_tokens`` tokens through a node, and copy it to the host if due.

    The integer of a write policy is the hit count from which it copies a node.
    """
    node = tree.nodes[k]
    node.priority = max(node.priority, priority)
    node.reach = max(node.reach, num_tokens)
    if node.end > inserted and tree.write_policy != WRITE_BACK:
        node.num_hits += 1
        if tree.write_policy != NO_HOST and node.num_hits >= tree.write_policy:
            write_through(tree, k)


def insert_key(
    tree: Radix, request: Request, num_tokens: int, known: int, inserted: int, priority: int
) -> None:
    """Insert a request's first tokens, in whole pages; set ``tree.node`` to the last node.

    The request already holds the path down to the node ``known``. Its own pages follow, from
    ``tree.page`` to ``tree.last_page``: pages with tokens that the tree has are freed, the others
    become a leaf. Afterwards ``tree.page`` is the first page after them, and ``tree.num_found`` the
    tokens that the tree had. The request's first ``tree.dead`` tokens have no window slots.
    """
    tree.nodes[0].last_access = tick(tree)
    tree.nodes[0].priority = max(tree.nodes[0].priority, priority)
    k, now = known, tick(tree)
    while k != 0:
        tree.nodes[k].last_access = now
        pass_node(tree, k, num_tokens, inserted, priority)
        k = tree.nodes[k].parent
    if tree.nodes[known].place > 0:
        settle_leaf(tree, known)
    k, size, at = known, tree.pages.page_size, tree.nodes[known].end
    seek(tree, request, 0, at + tree.ahead)
    child = step_down(tree, request, k, num_tokens - at)
    while child != 0:
        same = tree.num_same
        tree.nodes[child].last_access = tick(tree)
        if same < tree.nodes[child].span:
            child = split_node(tree, child, same)
            tree.num_same = 0
        if tree.nodes[child].on_host_only:
            tree.page = move_pages(tree, child, tree.page)
        elif tree.window > 0:
            share_windows(tree, child)
        else:
            tree.page = free_chain(tree, tree.page, same // size)
        tree.num_pages -= same // size
        pass_node(tree, child, num_tokens, inserted, priority)
        settle_leaf(tree, child)
        at += same
        k = child
        child = step_down(tree, request, k, num_tokens - at)
    tree.num_found = at
    tree.node = add_leaf(tree, request, k, num_tokens, priority) if at < num_tokens else k
    if tree.window > 0:
        refresh_recent(tree, tree.node)


def move_pages(tree: Radix, k: int, page: int) -> int:
    """Move a request's pages to a node that is on the host only; return the page after them."""
    last = page_behind(tree.pages, page, tree.nodes[k].span // tree.pages.page_size - 1)
    enter_device(tree, k, page, last)
    join_copies(tree, k)
    return page_after(tree.pages, last)


def add_leaf(tree: Radix, request: Request, parent: int, num_tokens: int, priority: int) -> int:
    """Insert a request's own pages as a leaf; the position in the request is their first token.

    Every leaf starts with one hit, since its tokens follow those that the request has inserted
    before; nodes split off from it for a window start with none.
    """
    start, page = tree.nodes[parent].end, tree.page
    last = find_last(tree, (num_tokens - start) // tree.pages.page_size)
    k = new_node(tree, parent, start, num_tokens, page, last)
    node = tree.nodes[k]
    node.created = node.last_access = tick(tree)
    node.priority = priority
    node.reach = num_tokens
    node.row = request.request_id
    name_tokens(tree, tree.pieces, tree.pages, request, page, num_tokens - start)
    tree.page = page_after(tree.pages, last)
    tree.num_evictable += num_tokens - start
    name_node(tree, k, root_salt(tree, request) if parent == 0 else 0)
    join_siblings(tree, k)
    if tree.window > 0:
        cut_windows(tree, k)
    node.num_hits = 0 if tree.write_policy == WRITE_BACK else 1
    settle_leaf(tree, parent)
    settle_leaf(tree, k)
    if tree.write_policy != NO_HOST and node.num_hits >= tree.write_policy:
        write_through(tree, k)
    return k


def find_last(tree: Radix, num_pages: int) -> int:
    """Return the last one of an insert's first ``num_pages`` pages.

    Usually it is the insert's last page, or the page before that if a token was computed since.
    """
    if num_pages == tree.num_pages:
        return tree.last_page
    if num_pages == tree.num_pages - 1 and tree.before_last != 0:
        return tree.before_last
    return page_behind(tree.pages, tree.page, num_pages - 1)


def num_host_found(tree: Radix) -> int:
    """Return the tokens of the last match that are on the host only."""
    return tree.num_walked - tree.num_found if tree.write_policy != NO_HOST else 0


def cut_at_prompt(tree: Radix, k: int, num_tokens: int, priority: int) -> None:
    """Insert a prompt that ends inside the path to a node: split there, and touch the path.

    This is the second insert of SGLang's checkpoint, in which no token is new.
    """
    tree.nodes[0].last_access = tick(tree)
    tree.nodes[0].priority = max(tree.nodes[0].priority, priority)
    while tree.nodes[k].start >= num_tokens:
        k = tree.nodes[k].parent
    if tree.nodes[k].end > num_tokens:
        k = split_node(tree, k, num_tokens - tree.nodes[k].start)
    now = tick(tree)
    while k != 0:
        tree.nodes[k].last_access = now
        pass_node(tree, k, num_tokens, num_tokens, priority)
        k = tree.nodes[k].parent
