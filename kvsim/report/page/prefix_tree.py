"""The prefixes that a cache has held, as a tree of block keys with unbranched chains merged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsim.results.block_events import DROPS, TAKES, BlockEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

#: Maximum number of nodes that a page draws; nodes with most hits come first.
MOST_NODES = 400


@dataclass
class Node:
    """Keys of consecutive blocks with equal hits and without a branch between them."""

    keys: list[int]
    parent: int  # index of the parent node, -1 for none
    hits: int = 0
    evictions: int = 0
    children: list[int] = field(default_factory=list)


def parents_of(events: NDArray[Any]) -> dict[int, int]:
    """Return for each key the key of the preceding block of the prompt; 0 for a first block."""
    tables: dict[tuple[int, int], dict[int, int]] = {}  # by replica and request: place, block
    holder: dict[tuple[int, int], tuple[int, int]] = {}  # by replica and block: request, place
    keys: dict[tuple[int, int], int] = {}  # by replica and block
    parents: dict[int, int] = {}
    for _, replica, kind, request, block, place, key in events.tolist():
        if kind in TAKES:
            tables.setdefault((replica, request), {})[place] = block
            holder[replica, block] = (request, place)
        elif kind in DROPS:
            tables[replica, request].pop(place, None)
        elif kind == BlockEvent.STORE:
            keys[replica, block] = key
            if key not in parents and place >= 0:
                parents[key] = keys.get((replica, place), 0)
            elif key not in parents and (replica, block) in holder:
                owner, at = holder[replica, block]
                before = tables.get((replica, owner), {}).get(at - 1, -1)
                parents[key] = keys.get((replica, before), 0)
        elif kind == BlockEvent.EVICT:
            keys.pop((replica, block), None)
    return parents


def prefix_tree(events: NDArray[Any]) -> list[Node]:
    """Build the tree of all keys; a node ends where prompts diverge or hits differ.

    Parents precede their children.
    """
    parents = parents_of(events)
    hits: dict[int, int] = dict.fromkeys(parents, 0)
    gone = dict(hits)
    for kind, key in zip(events["kind"].tolist(), events["key"].tolist(), strict=True):
        if kind == BlockEvent.HIT and key in hits:
            hits[key] += 1
        elif kind == BlockEvent.EVICT and key in gone:
            gone[key] += 1
    after: dict[int, list[int]] = {}
    for key, parent in parents.items():
        after.setdefault(parent if parent in parents else 0, []).append(key)
    nodes: list[Node] = []
    todo = [(key, -1) for key in reversed(after.get(0, []))]
    while todo:
        key, parent = todo.pop()
        node = Node([key], parent, hits[key], gone[key])
        nodes.append(node)
        place = len(nodes) - 1
        if parent >= 0:
            nodes[parent].children.append(place)
        following = after.get(key, [])
        while len(following) == 1 and hits[following[0]] == node.hits:
            node.keys += following
            node.evictions += gone[following[0]]
            following = after.get(following[0], [])
        todo += [(one, place) for one in reversed(following)]
    return nodes


def largest(nodes: list[Node], most: int = MOST_NODES) -> list[int]:
    """Return the indices of the nodes with most hits, then most blocks, with their ancestors.

    If any node has hits, nodes without hits are left out.
    """
    hit = [k for k, node in enumerate(nodes) if node.hits] or range(len(nodes))
    order = sorted(hit, key=lambda k: (-nodes[k].hits, -len(nodes[k].keys), k))
    chosen: set[int] = set()
    for place in order:
        path = set(_with_parents(nodes, place)) - chosen
        if len(chosen) + len(path) > most:
            break
        chosen |= path
    return sorted(chosen)


def _with_parents(nodes: list[Node], place: int) -> Iterable[int]:
    while place >= 0:
        yield place
        place = nodes[place].parent
