"""Copies to the host, and evictions there that make room for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import WRITE_BACK
from kvsim.engines.sglang.rules.host.cache import allocate_copy, drop_copy, remove_from_copies
from kvsim.engines.sglang.rules.host.copies import begin_copy
from kvsim.engines.sglang.rules.tree.leaves import may_go, settle_leaf
from kvsim.engines.sglang.rules.tree.locks import lock_path
from kvsim.engines.sglang.rules.tree.nodes import drop_node
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def evict_copies(tree: Radix, num_tokens: int) -> int:
    """Free ``num_tokens`` slots of the host, or as many as possible; return the number.

    Under write_back, copies of nodes that are also on the GPU are dropped first, copies of the
    GPU's leaves last. Then leaves without slots on the GPU are removed from the tree, by rank.
    """
    freed = 0
    if tree.write_policy == WRITE_BACK:
        freed = drop_queued(tree, num_tokens, True)
        freed += drop_queued(tree, num_tokens - freed, False)
    while freed < num_tokens and tree.host_leaves.count > 0:
        freed += drop_host_leaf(tree, tree.host_leaves.heap[1])
    return freed


def drop_queued(tree: Radix, num_tokens: int, spares_leaves: bool) -> int:
    """Drop copies of nodes on both tiers in the order of their queue; return the tokens freed."""
    k, freed = tree.queued.head, 0
    while k != NONE and freed < num_tokens:
        node, at = tree.nodes[k], k
        k = tree.queued_places[k].next
        if node.on_host_only:
            remove_from_copies(tree, at)
        elif not (
            node.is_pending or node.num_host_locks > 0 or (spares_leaves and may_go(tree, at))
        ):
            freed += drop_copy(tree, at)
    return freed


def drop_host_leaf(tree: Radix, k: int) -> int:
    """Drop a leaf that is on the host only; return its number of tokens."""
    parent, num_tokens = tree.nodes[k].parent, drop_copy(tree, k)
    drop_node(tree, k)
    settle_leaf(tree, parent)
    return num_tokens


def drop_descendants(tree: Radix, k: int) -> None:
    """Drop the host's nodes below a leaf of the GPU; none of them is locked."""
    at = tree.nodes[k].first_child
    while at != 0:
        while tree.nodes[at].first_child != 0:
            at = tree.nodes[at].first_child
        parent = tree.nodes[at].parent
        drop_copy(tree, at)
        drop_node(tree, at)
        at = parent if parent != k else tree.nodes[k].first_child


def back_up(tree: Radix, k: int) -> bool:
    """Copy a node to the host; return False if no room can be made."""
    size = tree.pages.page_size
    short = tree.nodes[k].span - tree.host_pages.num_left * size
    if short > 0 and evict_copies(tree, short) < short:
        return False
    allocate_copy(tree, k)
    return True


def send_out(tree: Radix, num_tokens: int) -> float:
    """Send tokens to the host after the copies in flight; return the arrival time."""
    tree.num_sent += num_tokens
    begins = max(tree.now, tree.out_free)
    tree.out_free = begins + tree.copy_time + num_tokens * tree.token_time
    return tree.out_free


def write_through(tree: Radix, k: int) -> None:
    """Start copying a node to the host, after its ancestors without a copy.

    A node is locked until the host has it.
    """
    while not tree.nodes[k].has_copy:
        top = k
        while tree.nodes[top].parent != 0 and not tree.nodes[tree.nodes[top].parent].has_copy:
            top = tree.nodes[top].parent
        if not back_up(tree, top):
            return
        tree.nodes[top].is_pending = True
        lock_path(tree, top)
        copy = begin_copy(tree.backups)
        copy.node = top
        copy.start = tree.nodes[top].start
        copy.time = send_out(tree, tree.nodes[top].span)
