"""Numbers of prompt blocks: equal content after an equal prefix gives the same number.

The prompts are paths in a tree. A node stands for a span of content within a block, and the node
that ends a block stands for the block. A hash table holds the children of nodes, but it is rarely
read: the nodes of a repeated prompt have consecutive numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record, Short

#: Odd multipliers; products with numbers below 2**31 stay below 2**62.
FIRST, SECOND, THIRD = 0x5BD1E995, 0x1B873593, 0x4CF5AD43
LOW = 2**31 - 1  # bits that enter a product
NO_NODE = 0  # number of a root, which is no node's child


@dataclass(slots=True)
class Node(Record):
    """A span of content after a parent: its content, first token of it and number of tokens."""

    parent: int = 0
    content: int = 0
    start: int = 0
    length: int = 0


@dataclass(slots=True)
class Naming(Record):
    """The prompts to name, and the tree so far.

    Attributes
    ----------
    contents, starts, lengths : content, first token of it and number of tokens, one per span
    offsets : first span of each request, and the number of spans
    roots : root of each request: requests with different roots share nothing
    paths : the found blocks of one request after the other
    nodes : the tree; the first ``num_roots`` nodes are roots
    buckets : the hash table, a power of two; its size can change between two calls
    num_buckets : length of ``buckets``
    with_short : number the last block of a prompt even if it is shorter
    number : number of requests
    done : number of requests that have names
    place : number of blocks that have names
    """

    contents: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    paths: list[Short] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    buckets: list[Short] = field(default_factory=list)
    num_buckets: int = 0
    num_roots: int = 0
    num_nodes: int = 0
    block_size: int = 0
    with_short: bool = False
    number: int = 0
    done: int = 0
    place: int = 0


def bucket_of(parent: int, content: int, start: int, length: int, mask: int) -> int:
    """Return the first bucket of a child."""
    word = (parent & LOW) * FIRST ^ (start & LOW) * SECOND ^ (content & LOW) * THIRD
    word ^= (content >> 31) ^ (start >> 31) ^ (length << 17)
    word = ((word ^ (word >> 29)) & LOW) * SECOND
    return (word ^ (word >> 24)) & mask


def is_child(node: Node, parent: int, content: int, start: int, length: int) -> bool:
    return (
        node.parent == parent
        and node.content == content
        and node.start == start
        and node.length == length
    )


def child_of(naming: Naming, parent: int, content: int, start: int, length: int) -> int:
    """Return a node's child for a span, which is created if it does not exist."""
    nodes, buckets, fresh = naming.nodes, naming.buckets, naming.num_nodes
    if parent + 1 < fresh and is_child(nodes[parent + 1], parent, content, start, length):
        return parent + 1
    mask = naming.num_buckets - 1
    at = bucket_of(parent, content, start, length, mask)
    while buckets[at] != NO_NODE:
        if is_child(nodes[buckets[at]], parent, content, start, length):
            return buckets[at]
        at = (at + 1) & mask
    buckets[at] = fresh
    node = nodes[fresh]
    node.parent, node.content, node.start, node.length = parent, content, start, length
    naming.num_nodes += 1
    return fresh


def fill_buckets(naming: Naming) -> None:
    """Fill an empty hash table with all nodes."""
    mask = naming.num_buckets - 1
    for k in range(naming.num_roots, naming.num_nodes):
        node = naming.nodes[k]
        at = bucket_of(node.parent, node.content, node.start, node.length, mask)
        while naming.buckets[at] != NO_NODE:
            at = (at + 1) & mask
        naming.buckets[at] = k


def name_request(naming: Naming, i: int) -> None:
    """Number the blocks of one prompt, root first."""
    node, filled = naming.roots[i], 0
    for k in range(naming.offsets[i], naming.offsets[i + 1]):
        start = naming.starts[k]
        stop = start + naming.lengths[k]
        while start < stop:
            taken = min(stop - start, naming.block_size - filled)
            node = child_of(naming, node, naming.contents[k], start, taken)
            filled, start = filled + taken, start + taken
            if filled == naming.block_size:
                naming.paths[naming.place] = node
                naming.place, filled = naming.place + 1, 0
    if filled > 0 and naming.with_short:
        naming.paths[naming.place] = node
        naming.place += 1


def most_nodes(naming: Naming, i: int) -> int:
    """Return the most nodes of a request: a span begins one, and so does a block inside it."""
    total = 0
    for k in range(naming.offsets[i], naming.offsets[i + 1]):
        total += naming.lengths[k] // naming.block_size + 2
    return total


def name_blocks(naming: Naming) -> int:
    """Number the blocks of all prompts; return how many buckets are needed to go on, or 0."""
    fill_buckets(naming)
    for i in range(naming.done, naming.number):
        needed = 2 * (naming.num_nodes + most_nodes(naming, i))
        if needed > naming.num_buckets:
            return needed
        name_request(naming, i)
        naming.done = i + 1
    return 0
