"""Making room: leaves lose their slots, and leave the tree if the host has no copy of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import WRITE_BACK
from kvsim.engines.sglang.rules.host.backup import back_up, drop_descendants, send_out
from kvsim.engines.sglang.rules.host.cache import free_device_copy, publish_copy
from kvsim.engines.sglang.rules.tree.leaves import settle_leaf
from kvsim.engines.sglang.rules.tree.nodes import drop_node
from kvsim.engines.sglang.rules.tree.pages import free_whole
from kvsim.engines.sglang.rules.tree.window_slots import bury
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def evict_leaf(tree: Radix, k: int) -> int:
    """Free all slots of an evictable leaf; return its number of tokens.

    The leaf is removed from the tree, unless the host has a copy. Under write_back it is copied
    now, if the host has room, and the next batch waits for the copy.
    """
    node = tree.nodes[k]
    parent, num_tokens = node.parent, node.span
    if tree.write_policy == WRITE_BACK and not node.has_copy and back_up(tree, k):
        tree.held_until = max(tree.held_until, send_out(tree, num_tokens))
        publish_copy(tree, k)
    if node.has_copy:
        free_device_copy(tree, k)
        return num_tokens
    if tree.write_policy == WRITE_BACK:
        drop_descendants(tree, k)
    free_whole(tree, node.page, node.last_page, num_tokens // tree.pages.page_size)
    tree.num_evictable -= num_tokens
    drop_node(tree, k)
    settle_leaf(tree, parent)
    return num_tokens


def evict_tokens(tree: Radix, num_tokens: int) -> int:
    """Evict leaves until ``num_tokens`` are freed or none is evictable; return the number freed."""
    evicted = 0
    while evicted < num_tokens and tree.leaves.count > 0:
        evicted += evict_leaf(tree, tree.leaves.heap[1])
    return evicted


def evict_for(tree: Radix, num_tokens: int) -> None:
    """Evict leaves, then window slots, until ``num_tokens`` are free or none is evictable."""
    while tree.pages.num_unused_slots < num_tokens and tree.leaves.count > 0:
        evict_leaf(tree, tree.leaves.heap[1])
    if tree.window > 0:
        evict_windows(tree, num_tokens)


def evict_windows(tree: Radix, num_tokens: int) -> None:
    """Free window slots, least recently used first, until enough are free; evict leaves whole."""
    k = tree.recent.tail
    while k != NONE and tree.window_pages.num_unused_slots < num_tokens:
        node, at = tree.nodes[k], k
        k = tree.recent_places[k].previous
        if node.num_window_locks > 0:
            continue
        if node.place > 0:
            evict_leaf(tree, at)
        else:
            bury(tree, at)
