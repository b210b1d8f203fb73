"""Nodes of the radix tree: found by their parent and first page, made, split and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import NO_HOST
from kvsim.engines.sglang.rules.host.cache import split_copy
from kvsim.engines.sglang.rules.tree.leaves import remove_from_heap, settle_leaf
from kvsim.engines.sglang.rules.tree.pages import page_after, page_behind
from kvsim.engines.sglang.rules.tree.pieces import cut_pieces, node_key
from kvsim.engines.sglang.rules.tree.state_slots import lose_state
from kvsim.engines.sglang.rules.tree.window_slots import lose_windows, split_windows
from kvsim.rules.links import enter_bucket, leave_bucket

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix


def name_node(tree: Radix, k: int, salt: int) -> None:
    """Compute the key of a node, and add the node to its bucket."""
    node, size = tree.nodes[k], tree.pages.page_size
    if node.on_host_only:
        node.key = node_key(tree.host_pieces, node.parent, salt, node.host_page * size, size)
    else:
        node.key = node_key(tree.pieces, node.parent, salt, node.page * size, size)
    enter_bucket(tree, tree.nodes, k)


def tick(tree: Radix) -> int:
    """Return a new time of the logical clock."""
    tree.clock += 1
    return tree.clock


def new_node(tree: Radix, parent: int, start: int, end: int, page: int, last_page: int) -> int:
    """Create an unused node that no other node or bucket refers to yet."""
    k = tree.free_node
    if k == 0:
        k = tree.num_nodes
        tree.num_nodes += 1
    else:
        tree.free_node = tree.nodes[k].chain
    tree.num_live_nodes += 1
    node = tree.nodes[k]
    node.reset()
    node.parent = parent
    node.start = start
    node.end = end
    node.page = page
    node.last_page = last_page
    node.is_tombstone = tree.window > 0
    return k


def join_siblings(tree: Radix, k: int) -> None:
    """Append a node to the children of its parent."""
    node = tree.nodes[k]
    parent = tree.nodes[node.parent]
    tree.num_children += 1
    parent.num_here += 1
    node.number = tree.num_children
    node.previous = parent.last_child
    if parent.last_child == 0:
        parent.first_child = k
    else:
        tree.nodes[parent.last_child].next = k
    parent.last_child = k


def remove_from_siblings(tree: Radix, k: int) -> None:
    """Remove a node from its parent's children."""
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
    """Put node ``new`` in the place of node ``old`` among its siblings."""
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
    """Move the first tokens of a node to a new parent; return the parent.

    The node keeps its locks and its index. Both nodes count as used now, first the parent.
    """
    child = tree.nodes[k]
    size, last = tree.pages.page_size, 0
    num_pages = num_tokens // size
    if not child.on_host_only:
        last = page_behind(tree.pages, child.page, num_pages - 1)
    new = new_node(tree, child.parent, child.start, child.start + num_tokens, child.page, last)
    parent = tree.nodes[new]
    parent.row = child.row
    parent.priority = child.priority
    parent.num_hits = child.num_hits
    parent.created = child.created
    parent.reach = child.reach
    parent.num_locks = child.num_locks
    if tree.window > 0:
        split_windows(tree, k, new)
    if tree.write_policy != NO_HOST:
        split_copy(tree, k, new, num_pages)
    replace_sibling(tree, k, new)
    leave_bucket(tree, tree.nodes, k)
    parent.key = child.key
    enter_bucket(tree, tree.nodes, new)
    child.start = parent.end
    if not child.on_host_only:
        child.page = page_after(tree.pages, last)
        cut_pieces(tree.pieces, parent.page * size, num_tokens, child.page * size)
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
    """Remove a leaf from the tree and free its record."""
    node = tree.nodes[k]
    if node.place > 0:
        remove_from_heap(tree, k)
    if tree.window > 0 and not node.is_tombstone:
        lose_windows(tree, k)
    if tree.has_states and node.state > 0:
        lose_state(tree, k)
    leave_bucket(tree, tree.nodes, k)
    remove_from_siblings(tree, k)
    if not node.on_host_only:
        tree.nodes[node.parent].num_here -= 1
    node.chain = tree.free_node
    tree.free_node = k
    tree.num_live_nodes -= 1
