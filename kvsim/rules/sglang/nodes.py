"""Nodes of the radix tree: found by their parent and first page, made, split and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.keys import FIRST_KEY, mix
from kvsim.rules.sglang.leaves import leave_heap, settle_leaf
from kvsim.rules.sglang.pages import free_chain, page_behind
from kvsim.rules.sglang.window_slots import (
    bury,
    lock_window,
    lose_windows,
    split_windows,
    unlock_window,
)

if TYPE_CHECKING:
    from kvsim.records.radix import Radix


def node_key(tree: Radix, parent: int, salt: int, first: int, last: int) -> int:
    """Name the child of a node that begins with a page, by the slots of its first and last token.

    Names need not tell all pages apart: whoever looks one up compares the page.
    """
    key = mix(mix(FIRST_KEY, parent), salt)
    key = mix(mix(key, tree.slots[first].content), tree.slots[first].index)
    return mix(mix(key, tree.slots[last].content), tree.slots[last].index)


def name_node(tree: Radix, k: int, salt: int) -> None:
    """Enter a node into the buckets."""
    node, size = tree.nodes[k], tree.pages.page_size
    first = node.page * size
    node.key = node_key(tree, node.parent, salt, first, first + size - 1)
    enter_bucket(tree, k)


def enter_bucket(tree: Radix, k: int) -> None:
    """Let a node be found by its key."""
    node = tree.nodes[k]
    bucket = node.key & tree.bucket_mask
    node.chain = tree.buckets[bucket]
    tree.buckets[bucket] = k


def leave_bucket(tree: Radix, k: int) -> None:
    """Let a node not be found any more."""
    node = tree.nodes[k]
    bucket = node.key & tree.bucket_mask
    at = tree.buckets[bucket]
    if at == k:
        tree.buckets[bucket] = node.chain
        return
    while tree.nodes[at].chain != k:
        at = tree.nodes[at].chain
    tree.nodes[at].chain = node.chain


def tick(tree: Radix) -> int:
    """Return a new time of the logical clock."""
    tree.clock += 1
    return tree.clock


def new_node(tree: Radix, parent: int, start: int, end: int, page: int) -> int:
    """Make a node that nobody has used and nothing leads to."""
    k = tree.free_node
    if k == 0:
        k = tree.num_nodes
        tree.num_nodes += 1
    else:
        tree.free_node = tree.nodes[k].chain
    tree.num_live_nodes += 1
    node = tree.nodes[k]
    node.parent = parent
    node.start = start
    node.end = end
    node.page = page
    node.first_child = 0
    node.last_child = 0
    node.next = 0
    node.previous = 0
    node.num_locks = 0
    node.is_tombstone = tree.window > 0
    node.num_window_locks = 0
    node.edge = 0
    node.num_hits = 0
    node.priority = 0
    node.reach = 0
    node.weight = 0
    node.place = 0
    return k


def join_siblings(tree: Radix, k: int) -> None:
    """Make a node the last child of its parent."""
    node = tree.nodes[k]
    parent = tree.nodes[node.parent]
    tree.num_children += 1
    node.number = tree.num_children
    node.previous = parent.last_child
    if parent.last_child == 0:
        parent.first_child = k
    else:
        tree.nodes[parent.last_child].next = k
    parent.last_child = k


def leave_siblings(tree: Radix, k: int) -> None:
    """Take a node from its parent's children."""
    node = tree.nodes[k]
    parent = tree.nodes[node.parent]
    if node.previous == 0:
        parent.first_child = node.next
    else:
        tree.nodes[node.previous].next = node.next
    if node.next == 0:
        parent.last_child = node.previous
    else:
        tree.nodes[node.next].previous = node.previous


def replace_sibling(tree: Radix, old: int, new: int) -> None:
    """Put a node among its siblings where another one was."""
    node, other = tree.nodes[new], tree.nodes[old]
    parent = tree.nodes[other.parent]
    node.previous = other.previous
    node.next = other.next
    node.number = other.number
    if other.previous == 0:
        parent.first_child = new
    else:
        tree.nodes[other.previous].next = new
    if other.next == 0:
        parent.last_child = new
    else:
        tree.nodes[other.next].previous = new


def split_node(tree: Radix, k: int, num_tokens: int) -> int:
    """Give the first tokens of a node to a new parent of it; returns that.

    The node keeps its locks and its identity. Both are used now, the node later.
    """
    child = tree.nodes[k]
    page = page_behind(tree, child.page, num_tokens // tree.pages.page_size)
    new = new_node(tree, child.parent, child.start, child.start + num_tokens, child.page)
    parent = tree.nodes[new]
    parent.priority = child.priority
    parent.num_hits = child.num_hits
    parent.created = child.created
    parent.reach = child.reach
    parent.num_locks = child.num_locks
    if tree.window > 0:
        split_windows(tree, k, new)
    replace_sibling(tree, k, new)
    leave_bucket(tree, k)
    parent.key = child.key
    enter_bucket(tree, new)
    child.start = parent.end
    child.page = page
    child.parent = new
    child.next = 0
    child.previous = 0
    parent.first_child = k
    parent.last_child = k
    name_node(tree, k, 0)
    parent.last_access = tick(tree)
    child.last_access = tick(tree)
    settle_leaf(tree, k)
    return new


def drop_node(tree: Radix, k: int) -> None:
    """Take a leaf out of the tree and use its record again."""
    node = tree.nodes[k]
    if node.place > 0:
        leave_heap(tree, k)
    if tree.window > 0 and not node.is_tombstone:
        lose_windows(tree, k)
    leave_bucket(tree, k)
    leave_siblings(tree, k)
    node.chain = tree.free_node
    tree.free_node = k
    tree.num_live_nodes -= 1


def evict_leaf(tree: Radix, k: int) -> int:
    """Drop a leaf that may go, whole; returns its tokens."""
    node = tree.nodes[k]
    parent, num_tokens = node.parent, node.span
    free_chain(tree, node.page, num_tokens // tree.pages.page_size)
    tree.num_evictable -= num_tokens
    drop_node(tree, k)
    settle_leaf(tree, parent)
    return num_tokens


def evict_tokens(tree: Radix, num_tokens: int) -> int:
    """Evict leaves until so many tokens have gone, or nothing may go; returns how many went."""
    evicted = 0
    while evicted < num_tokens and tree.num_leaves > 0:
        evicted += evict_leaf(tree, tree.heap[1])
    return evicted


def evict_for(tree: Radix, num_tokens: int) -> None:
    """Evict leaves until so many slots are free, or nothing may go; then windows likewise."""
    while tree.pages.num_unused_slots < num_tokens and tree.num_leaves > 0:
        evict_leaf(tree, tree.heap[1])
    if tree.window > 0:
        evict_windows(tree, num_tokens)


def evict_windows(tree: Radix, num_tokens: int) -> None:
    """Free window slots of the nodes used longest ago, until so many are free; leaves go whole."""
    k = tree.oldest
    while k != 0 and tree.window_pages.num_unused_slots < num_tokens:
        node, at = tree.nodes[k], k
        k = node.newer
        if node.num_window_locks > 0:
            continue
        if node.place > 0:
            evict_leaf(tree, at)
        else:
            bury(tree, at)


def lock_path(tree: Radix, k: int) -> int:
    """Hold a node and all above it; returns the mark where its window begins, if it has one."""
    end = k
    while k != 0:
        node = tree.nodes[k]
        if node.num_locks == 0:
            tree.num_evictable -= node.span
            tree.num_protected += node.span
        node.num_locks += 1
        k = node.parent
    settle_leaf(tree, end)
    return lock_window(tree, end) if tree.window > 0 else 0


def unlock_path(tree: Radix, k: int, edge: int) -> None:
    """Let go of a node and all above it, and of the window up to a mark."""
    end = k
    if tree.window > 0:
        unlock_window(tree, end, edge)
    while k != 0:
        node = tree.nodes[k]
        node.num_locks -= 1
        if node.num_locks == 0:
            tree.num_protected -= node.span
            tree.num_evictable += node.span
        k = node.parent
    settle_leaf(tree, end)
