"""A recount of a radix cache: its nodes, and the slots of each request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.records.memory import Views, head
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.engines.sglang.records.radix import Copies, Copy, Pages, Radix
    from kvsim.engines.sglang.records.storage import Read
    from kvsim.records.engine import Replica


class Seen(NamedTuple):
    """A copy of a node: its index, first and last token, and other fields for a recount."""

    place: int
    start: int
    end: int
    page: int
    last_page: int
    parent: int
    first_child: int
    next: int
    num_locks: int
    heap_place: int
    is_tombstone: bool
    num_window_locks: int
    edge: int
    on_host_only: bool

    @property
    def num_tokens(self) -> int:
        return self.end - self.start


FIELDS = (
    *("start", "end", "page", "last_page", "parent", "first_child", "next", "num_locks", "place"),
    *("is_tombstone", "num_window_locks", "edge", "on_host_only"),
)


class TreeView:
    """The nodes and links of a tree, copied from objects or flat memory."""

    def __init__(self, tree: Radix) -> None:
        self.pages, self.size = tree.pages, tree.pages.page_size
        self.next_page = next_pages(tree.pages)
        count, rows = tree.num_nodes, tree.nodes
        columns: list[Any]
        if isinstance(rows, Views):
            columns = [rows.array[name][:count].tolist() for name in FIELDS]
        else:
            columns = [[getattr(rows[k], name) for k in range(count)] for name in FIELDS]
        self.rows = [Seen(k, *row) for k, row in enumerate(zip(*columns, strict=True))]

    def free_pages(self) -> list[int]:
        """Return the free pages in the order of their allocation."""
        return self.chain(self.pages.first, self.pages.num_left)

    def chain(self, page: int, count: int) -> list[int]:
        found, following = [], self.next_page
        for k in range(count):
            found.append(page)
            page = following[page] if k + 1 < count else 0
        return found

    def slots(self, page: int, num_tokens: int) -> list[int]:
        """Return the first slots of a chain of pages."""
        size = self.size
        pages = self.chain(page, -(-num_tokens // size))
        return [p * size + k for p in pages for k in range(size)][:num_tokens]

    def nodes(self) -> Iterator[Seen]:
        """Yield all nodes except the root, parents first, including nodes on the host only."""
        places = [self.rows[0].first_child]
        while places:
            k = places.pop()
            while k:
                yield self.rows[k]
                places.append(self.rows[k].first_child)
                k = self.rows[k].next

    def ancestors(self, k: int, start: int = 0) -> Iterator[Seen]:
        """Yield a node and its ancestors that begin at ``start`` or later, except the root."""
        while k and self.rows[k].start >= start:
            yield self.rows[k]
            k = self.rows[k].parent

    def path(self, k: int) -> list[int]:
        """Return the slots of a node and its ancestors, in the order of tokens."""
        nodes = [node for node in self.ancestors(k) if not node.on_host_only]
        return [s for node in reversed(nodes) for s in self.slots(node.page, node.num_tokens)]


def next_pages(pages: Pages) -> list[int]:
    """Return the page after each page; untouched pages follow in their order."""
    links, count = pages.links, pages.num_pages + 1
    if isinstance(links, Views):
        jumps = links.array["jump"]
        found: list[int] = (np.arange(1, len(jumps) + 1) + jumps).tolist()
        return found
    found = list(range(1, count + 1))
    for page, link in links.items():  # type: ignore[attr-defined]
        found[page] += link.jump
    return found


def free_pages(pages: Pages) -> list[int]:
    """Return the free pages of a pool without a tree in the order of their allocation."""
    following, found, page = next_pages(pages), [], pages.first
    for _ in range(pages.num_left):
        found.append(page)
        page = following[page]
    return found


def own_slots(seen: TreeView, state: Replica, k: int) -> list[int]:
    """Return the slots of a request after its path in the tree, the reserve for drafts included."""
    mine = state.engines.sglang.progress[k]
    slots = max(mine.num_slots, state.requests[k].num_computed_tokens)
    return seen.slots(mine.page, slots - mine.num_shared)


def holders(state: Replica) -> list[int]:
    return [
        k
        for k in range(state.num_requests)
        if state.requests[k].status != FINISHED and state.engines.sglang.progress[k].row >= 0
    ]


def whole_chain(seen: TreeView, first: int, last: int, count: int) -> list[int]:
    """Return the pages of a chain, and check its end.

    Raises
    ------
    RuntimeError
        If the chain does not end at ``last``.
    """
    pages = seen.chain(first, count)
    if pages and pages[-1] != last:
        raise RuntimeError("a chain of pages does not end at its last page")
    return pages


def check_tree(state: Replica) -> list[Seen]:
    """Recount slots, locks and leaves; return the nodes.

    Raises
    ------
    RuntimeError
        Naming the count or mark that is wrong.
    """
    tree, seen, held = state.kv.radix, TreeView(state.kv.radix), holders(state)
    mine = {k: state.engines.sglang.progress[k] for k in held}
    nodes = list(seen.nodes())
    pages = seen.free_pages()
    for node in nodes:
        if not node.on_host_only:
            pages += whole_chain(seen, node.page, node.last_page, node.num_tokens // seen.size)
    for one in mine.values():
        pages += whole_chain(seen, one.page, one.last_page, one.num_pages)
    if sorted(pages) != list(range(1, tree.pages.num_pages + 1)):
        raise RuntimeError(
            f"invariants 2 and 4: {len(pages)} free and used pages, {len(set(pages))} distinct, "
            f"in a pool of {tree.pages.num_pages}"
        )
    check_locks(state, seen, nodes)
    if len(nodes) != tree.num_live_nodes:
        raise RuntimeError("nodes are miscounted")
    own = sum(state.requests[k].num_computed_tokens - mine[k].num_shared for k in held)
    if own != tree.num_own_tokens or sum(m.num_pages for m in mine.values()) != tree.num_own_pages:
        raise RuntimeError("slots of requests outside the tree are miscounted")
    rows = [m.row for m in mine.values()] + head(
        state.engines.sglang.rows, state.engines.sglang.num_rows
    )
    if sorted(rows) != list(range(1, state.engines.sglang.max_running + 1)):
        raise RuntimeError("rows are lost, or assigned twice")
    return nodes


def under_way(copies: Copies) -> list[Copy]:
    """Return the copies in flight in one direction, in their order."""
    places = range(copies.first, copies.first + copies.count)
    return [copies.rows[place % copies.most] for place in places]


def nodes_of_copies(tree: Radix) -> list[int]:
    """Return the nodes locked by copies in flight."""
    return [copy.node for copy in under_way(tree.backups) + under_way(tree.loads)]


def reads_under_way(state: Replica) -> list[Read]:
    """Return the reads from storage with tokens that are not inserted yet."""
    if not state.storage.is_on:
        return []
    reads, waiting = state.storage.reads, []
    k = state.waiting.head
    while k != NONE:
        if reads[k].num_tokens:
            waiting.append(reads[k])
        k = state.requests[k].next
    return waiting


def check_locks(state: Replica, seen: TreeView, nodes: list[Seen]) -> None:
    """Recount the locks of every node, and the tokens that may be evicted."""
    tree, locks = state.kv.radix, count_locks(state, seen, nodes)
    on_gpu = [node for node in nodes if not node.on_host_only]
    parents = {node.parent for node in on_gpu}
    for node in nodes:
        if node.num_locks != locks[node.place]:
            raise RuntimeError(
                f"invariant 3: a node counts {node.num_locks} locks, not {locks[node.place]}"
            )
        check_leaf(tree, node, node.first_child > 0 if node.on_host_only else node.place in parents)
        if node.start != seen.rows[node.parent].end or not node.num_tokens:
            raise RuntimeError("a node does not begin where its parent ends")
    if split_by_lock(on_gpu, locks) != (tree.num_protected, tree.num_evictable):
        raise RuntimeError("protected or evictable tokens are miscounted")


def count_locks(state: Replica, seen: TreeView, nodes: list[Seen]) -> dict[int, int]:
    """Return the number of locks that requests and copies in flight hold on each node."""
    locks, ends = dict.fromkeys([node.place for node in nodes], 0), nodes_of_copies(state.kv.radix)
    for k in holders(state):
        mine = state.engines.sglang.progress[k]
        if mine.node and seen.rows[mine.node].end != mine.num_shared:
            raise RuntimeError("a request locks a node that does not end where its own pages begin")
        ends.append(mine.node)
    for end in ends:
        for node in seen.ancestors(end):
            locks[node.place] += 1
    return locks


def check_leaf(tree: Radix, node: Seen, has_more: bool) -> None:
    """Check that a node is in the heap of its tier if, and only if, it may be evicted."""
    may_go = node.num_locks == 0 and not has_more
    may_go &= not (node.on_host_only and tree.nodes[node.place].num_host_locks)
    heap = tree.host_leaves.heap if node.on_host_only else tree.leaves.heap
    at = node.heap_place
    if may_go != (at > 0) or (may_go and heap[at] != node.place):
        raise RuntimeError("the heap of evictable leaves is wrong")


def split_by_lock(nodes: list[Seen], locks: dict[int, int]) -> tuple[int, int]:
    """Return the tokens of locked and of other nodes."""
    locked = sum(node.num_tokens for node in nodes if locks[node.place])
    return locked, sum(node.num_tokens for node in nodes) - locked


def listed_nodes(tree: Radix, most: int) -> list[int]:
    """Walk the list of nodes with window slots or a state in both directions; return it sorted.

    Raises
    ------
    RuntimeError
        If the two directions differ.
    """
    forth: list[int] = []
    back: list[int] = []
    k = tree.recent.head
    while k != NONE and len(forth) <= most:
        forth.append(k)
        k = tree.recent_places[k].next
    k = tree.recent.tail
    while k != NONE and len(back) <= most:
        back.append(k)
        k = tree.recent_places[k].previous
    if forth != back[::-1]:
        raise RuntimeError("the list of recently used nodes differs from its reverse")
    return sorted(forth)
