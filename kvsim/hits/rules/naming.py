"""Numbers of prompt blocks: equal content after an equal prefix gives the same number.

The prompts are paths in a tree. A node stands for a span of content within a block, and the node
that ends a block stands for the block. A hash table holds the children of nodes, but it is rarely
read: the nodes of a repeated prompt have consecutive numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Shorts = NDArray[np.int32]
    Span = tuple[int, int, int]  # content, first token of it, number of tokens

#: Odd multipliers; products with numbers below 2**31 stay below 2**62.
FIRST, SECOND, THIRD = 0x5BD1E995, 0x1B873593, 0x4CF5AD43
LOW = 2**31 - 1  # bits that enter a product
NO_NODE = 0  # number of a root, which is no node's child
FIRST_BUCKETS = 1 << 12


def bucket_of(parent: int, span: Span, mask: int) -> int:
    """Return the first bucket of a child."""
    content, start, length = int(span[0]), int(span[1]), int(span[2])
    word = (int(parent) & LOW) * FIRST ^ (start & LOW) * SECOND ^ (content & LOW) * THIRD
    word ^= (content >> 31) ^ (start >> 31) ^ (length << 17)
    word = ((word ^ (word >> 29)) & LOW) * SECOND
    return (word ^ (word >> 24)) & mask


def is_child(nodes: Ints, child: int, node: int, span: Span) -> bool:
    return bool(
        nodes[child, 0] == node
        and nodes[child, 1] == span[0]
        and nodes[child, 2] == span[1]
        and nodes[child, 3] == span[2]
    )


def child_of(nodes: Ints, buckets: Shorts, num_nodes: int, node: int, span: Span) -> int:
    """Return a node's child for a span; a new child has the number ``num_nodes``."""
    if node + 1 < num_nodes and is_child(nodes, node + 1, node, span):
        return node + 1
    mask = len(buckets) - 1
    at = bucket_of(node, span, mask)
    while buckets[at] != NO_NODE:
        if is_child(nodes, buckets[at], node, span):
            return int(buckets[at])
        at = (at + 1) & mask
    buckets[at] = num_nodes
    nodes[num_nodes, 0] = node
    nodes[num_nodes, 1], nodes[num_nodes, 2], nodes[num_nodes, 3] = span
    return num_nodes


def with_more_buckets(nodes: Ints, first: int, num_nodes: int, num_buckets: int) -> Shorts:
    """Return a larger hash table, with the nodes from ``first`` on."""
    buckets, mask = np.zeros(num_buckets, np.int32), num_buckets - 1
    for node in range(first, num_nodes):
        at = bucket_of(nodes[node, 0], (nodes[node, 1], nodes[node, 2], nodes[node, 3]), mask)
        while buckets[at] != NO_NODE:
            at = (at + 1) & mask
        buckets[at] = node
    return buckets


def name_blocks(
    spans: tuple[Ints, Ints, Ints],
    offsets: Ints,
    roots: Ints,
    block_size: int,
    with_short: bool,
    nodes: Ints,
    paths: Shorts,
) -> int:
    """Number the blocks of all prompts, request by request, root first.

    Parameters
    ----------
    spans : content, first token of it and number of tokens, one per span
    offsets : first span of each request, and the number of spans
    roots : root of each request: requests with different roots share nothing
    with_short : number the last block of a prompt even if it is shorter
    nodes : room for the parent, content, start and length of every node, shape (nodes, 4)
    paths : filled with the blocks of one request after the other

    Returns
    -------
    num_nodes : number of nodes; the numbers of all blocks are below it
    """
    contents, starts, lengths = spans
    num_roots = roots.max() + 1
    num_nodes, place = num_roots, 0
    buckets = np.zeros(FIRST_BUCKETS, np.int32)
    for i in range(len(roots)):
        node, filled = roots[i], 0
        for k in range(offsets[i], offsets[i + 1]):
            start, stop = starts[k], starts[k] + lengths[k]
            while start < stop:
                taken = min(stop - start, block_size - filled)
                node = child_of(nodes, buckets, num_nodes, node, (contents[k], start, taken))
                if node == num_nodes:
                    num_nodes += 1
                    if 2 * num_nodes > len(buckets):
                        size = 2 * len(buckets)
                        buckets = with_more_buckets(nodes, num_roots, num_nodes, size)
                filled, start = filled + taken, start + taken
                if filled == block_size:
                    paths[place] = node
                    place, filled = place + 1, 0
        if filled > 0 and with_short:
            paths[place] = node
            place += 1
    return int(num_nodes)
