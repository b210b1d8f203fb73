"""Loads of prompt tokens from the host, and the end of copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.host.cache import enter_device, join_copies, publish_copy
from kvsim.engines.sglang.rules.host.copies import begin_copy, end_copy, is_done
from kvsim.engines.sglang.rules.tree.evict import evict_for
from kvsim.engines.sglang.rules.tree.leaves import settle_leaf
from kvsim.engines.sglang.rules.tree.locks import lock_path, unlock_path
from kvsim.engines.sglang.rules.tree.pages import allocate_chain

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix

#: Fewer tokens are recomputed instead of loaded.
LEAST_LOADED = 10


def load_path(tree: Radix, k: int) -> int:
    """Load the part of a path that is on the host only; return its tokens, 0 on failure.

    The node is locked until the copy has arrived.
    """
    num_tokens = num_host_tokens(tree, k)
    lock_path(tree, k)
    tree.nodes[k].num_host_locks += 1
    fits = num_tokens >= LEAST_LOADED
    if fits:
        evict_for(tree, num_tokens)
        fits = tree.pages.num_unused_slots >= num_tokens
    if not fits:
        tree.nodes[k].num_host_locks -= 1
        unlock_path(tree, k, 0)
        return 0
    copy = begin_copy(tree.loads)
    copy.node = k
    copy.start = tree.nodes[k].start
    copy.top = tree.nodes[k].end - num_tokens
    while tree.nodes[k].on_host_only:
        top = k
        while tree.nodes[tree.nodes[top].parent].on_host_only:
            top = tree.nodes[top].parent
        first = tree.pages.first
        last = allocate_chain(tree.pages, tree.nodes[top].span // tree.pages.page_size)
        enter_device(tree, top, first, last)
    begins = max(tree.now, tree.in_free)
    tree.in_free = begins + tree.copy_time + num_tokens * tree.token_time
    tree.loaded_at = copy.time = tree.in_free
    return num_tokens


def num_host_tokens(tree: Radix, k: int) -> int:
    """Return the tokens of a path that are on the host only."""
    count = 0
    while tree.nodes[k].on_host_only:
        count += tree.nodes[k].span
        k = tree.nodes[k].parent
    return count


def unlock_finished_copies(tree: Radix, now: float) -> None:
    """Unlock the nodes of finished copies, first of copies to the host, then of loads."""
    tree.now = now
    while is_done(tree.backups, now):
        copy = end_copy(tree.backups)
        at = copy.node
        while at != 0 and tree.nodes[at].start >= copy.start:
            tree.nodes[at].is_pending = False
            publish_copy(tree, at)
            at = tree.nodes[at].parent
        unlock_path(tree, copy.node, 0)
    while is_done(tree.loads, now):
        copy = end_copy(tree.loads)
        at = copy.node
        while at != 0 and tree.nodes[at].start >= copy.top:
            if tree.nodes[at].has_copy:  # the copy may have been dropped by an old queue entry
                join_copies(tree, at)
            if tree.nodes[at].start >= copy.start:
                tree.nodes[at].num_host_locks -= 1
            at = tree.nodes[at].parent
        unlock_path(tree, copy.node, 0)
        settle_leaf(tree, copy.node)
