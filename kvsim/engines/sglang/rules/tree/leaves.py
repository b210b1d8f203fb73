"""Evictable leaves in a heap by rank: the next one to evict is first.

One heap has the leaves of the GPU, another one the leaves that are on the host only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import (
    FIFO,
    FILO,
    HPT,
    LFU,
    LRU,
    MRU,
    NO_HOST,
    PRIORITY,
    SLRU,
    TLRU,
)

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Leaves, Radix

#: Hits per token, which sglang#30300 divides as floats, are integers times this.
HITS_SCALE = 1 << 32


def rank_of(tree: Radix, k: int) -> int:
    """Return a leaf's rank: the smallest is evicted first, on a tie the least recently used."""
    node = tree.nodes[k]
    if tree.rank == LRU:
        return node.last_access
    if tree.rank == LFU:
        return node.num_hits
    if tree.rank == FIFO:
        return node.created
    if tree.rank == MRU:
        return -node.last_access
    if tree.rank == FILO:
        return -node.created
    if tree.rank == SLRU:
        return int(node.num_hits >= tree.protected_threshold)
    if tree.rank == PRIORITY:
        return node.priority
    if tree.rank == TLRU:
        needed = max(node.reach + tree.next_prompt_estimate - tree.tail_threshold, 0)
        return -1 if node.start >= needed else 0
    if tree.rank == HPT:
        return node.num_hits * HITS_SCALE // (node.end - node.start)
    return 0


def goes_before(tree: Radix, a: int, b: int) -> bool:
    """Return True if a leaf is evicted before another."""
    first, second = rank_of(tree, a), rank_of(tree, b)
    if first != second:
        return first < second
    return tree.nodes[a].last_access < tree.nodes[b].last_access


def leaves_of(tree: Radix, k: int) -> Leaves:
    """Return the heap for a node."""
    return tree.host_leaves if tree.nodes[k].on_host_only else tree.leaves


def raise_leaf(tree: Radix, leaves: Leaves, place: int) -> int:
    """Move a leaf towards the front of the heap to its position; return the position."""
    heap = leaves.heap
    k = heap[place]
    while place > 1 and goes_before(tree, k, heap[place // 2]):
        heap[place] = heap[place // 2]
        tree.nodes[heap[place]].place = place
        place //= 2
    heap[place] = k
    tree.nodes[k].place = place
    return place


def sink_leaf(tree: Radix, leaves: Leaves, place: int) -> None:
    """Move a leaf away from the front of the heap, to its position."""
    heap = leaves.heap
    k = heap[place]
    while 2 * place <= leaves.count:
        child = 2 * place
        if child < leaves.count and goes_before(tree, heap[child + 1], heap[child]):
            child += 1
        if not goes_before(tree, heap[child], k):
            break
        heap[place] = heap[child]
        tree.nodes[heap[place]].place = place
        place = child
    heap[place] = k
    tree.nodes[k].place = place


def may_go(tree: Radix, k: int) -> bool:
    """Return True if a node is an unlocked leaf of the tree on the GPU, or on the host."""
    node = tree.nodes[k]
    if k == 0 or node.num_locks > 0:
        return False
    if tree.write_policy == NO_HOST:
        return node.first_child == 0
    if node.on_host_only:
        return node.first_child == 0 and node.num_host_locks == 0
    return node.num_here == 0


def settle_leaf(tree: Radix, k: int) -> None:
    """Add, move or remove a node in the heap after its change."""
    node = tree.nodes[k]
    if may_go(tree, k):
        leaves = leaves_of(tree, k)
        if node.place == 0:
            leaves.count += 1
            node.place = leaves.count
            leaves.heap[node.place] = k
        sink_leaf(tree, leaves, raise_leaf(tree, leaves, node.place))
    elif node.place > 0:
        remove_from_heap(tree, k)


def remove_from_heap(tree: Radix, k: int) -> None:
    leaves = leaves_of(tree, k)
    place, last = tree.nodes[k].place, leaves.heap[leaves.count]
    tree.nodes[k].place = 0
    leaves.count -= 1
    if last != k:
        leaves.heap[place] = last
        sink_leaf(tree, leaves, raise_leaf(tree, leaves, place))
