"""The history of a radix cache's pages, observed between steps: requests, nodes and keys."""

from __future__ import annotations

from itertools import chain as concatenated
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.engine.history.block_watch import (
    ALLOC,
    EVICT,
    FREE,
    HIT,
    REF_ADD,
    REF_DROP,
    STORE,
    Watch,
)
from kvsim.records.memory import Views, column
from kvsim.records.record import NONE
from kvsim.rules.blocks.keys import FIRST_KEY, mix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from kvsim.engine.history.block_watch import Change
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.records.engine import Replica

    #: Request, page, and index among the request's pages.
    Place = tuple[int, int, int]

PIECE_FIELDS = ("content", "index", "num_tokens", "behind")
NODE_FIELDS = ("start", "end", "page", "parent", "first_child", "next", "on_host_only")
#: Fields of every request's record that each observation reads.
FIELDS = ("row", "num_shared", "node", "page", "last_page", "num_pages", "prefix")


def reader(rows: Any, name: str) -> Callable[[int], int]:
    """Return a fast function from an index in a list of records to a field of the record."""
    if isinstance(rows, Views):
        read: Callable[[int], int] = rows.array[name].item
        return read
    return lambda k: getattr(rows[k], name)


def chain(jump: Callable[[int], int], page: int, count: int) -> list[int]:
    found = [page] if count > 0 else []
    for _ in range(count - 1):
        page += 1 + jump(page)
        found.append(page)
    return found


class TreeWatch:
    """The pages of a tree and their keys, as they were last observed.

    Parameters
    ----------
    tree : record of the tree
    """

    def __init__(self, tree: Radix) -> None:
        self._tree = tree
        self._seen = (0, 0, 0, 0)
        self._nodes: dict[int, tuple[int, int, int, int]] = {}  # node: start, end, page, parent
        self.pages: dict[int, list[int]] = {}  # of each node
        self.parents: dict[int, int] = {}  # node above each node
        self.keys = [0] * (tree.pages.num_pages + 1)  # by page, 0 for none
        self._size, self._jump = tree.pages.page_size, reader(tree.pages.links, "jump")
        self._read = [reader(tree.pieces, name) for name in PIECE_FIELDS]

    def changes(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
        """Return removed pages with keys, and added pages with the page before and the key."""
        tree = self._tree
        # A new leaf adds a child, a lost leaf removes tokens, and a split adds a node.
        counts = tree.num_children, tree.num_live_nodes, tree.num_moved
        now = *counts, tree.num_evictable + tree.num_protected
        if now == self._seen:
            return [], []
        self._seen = now
        found = self._live_nodes()
        changed = [k for k, facts in found.items() if self._nodes.get(k) != facts]
        left = {page for k in self._nodes.keys() - found.keys() for page in self.pages.pop(k)}
        left.update(page for k in changed for page in self.pages.get(k, ()))
        before = {page: self.keys[page] for page in left}
        come = []
        for k in changed:  # parents first
            start, end, page, parent = found[k]
            self.pages[k] = chain(self._jump, page, (end - start) // self._size)
            self.parents[k] = parent
            left.difference_update(self.pages[k])
            named = self._name(k, self._tokens(page * self._size, end - start))
            come += [one for one in named if one[2] != before.get(one[0])]
        self._nodes = found
        gone = [(page, key) for page, key in before.items() if key != self.keys[page]]
        for page in left:
            gone.append((page, before[page]))
            self.keys[page] = 0
        return sorted(gone), come

    def _name(self, k: int, tokens: Iterator[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Compute the keys of a node's pages; return page, previous page and key of each."""
        named, parent = [], self.parents[k]
        last = self.pages[parent][-1] if parent else -1
        for page in self.pages[k]:
            key = self.keys[last] if last >= 0 else FIRST_KEY
            for content, index in islice(tokens, self._size):
                key = mix(mix(key, content), index)
            named.append((page, last, key))
            self.keys[page] = key
            last = page
        return named

    def _live_nodes(self) -> dict[int, tuple[int, int, int, int]]:
        """Return start, end, first page and parent of all nodes with pages, parents first."""
        count = self._tree.num_nodes
        columns = [column(self._tree.nodes, name, count) for name in NODE_FIELDS]
        start, end, page, parent, child, sibling, on_host_only = columns
        found = {}
        places = [child[0]]
        while places:
            k = places.pop()
            while k:
                if not on_host_only[k]:  # if it is, all nodes below it are, too
                    found[k] = start[k], end[k], page[k], parent[k]
                    places.append(child[k])
                k = sibling[k]
        return found

    def _tokens(self, slot: int, num_tokens: int) -> Iterator[tuple[int, int]]:
        """Yield content and index of a node's tokens, by its first slot."""
        content, index, count, behind = self._read
        while num_tokens > 0:
            first = index(slot)
            for place in range(first, first + min(count(slot), num_tokens)):
                yield content(slot), place
            num_tokens -= count(slot)
            slot = behind(slot)

    def path(self, node: int) -> list[int]:
        """Return the pages of a node and of all above it, in the order of tokens."""
        parts: list[list[int]] = []
        while node:
            parts.append(self.pages[node])
            node = self.parents[node]
        return [page for part in reversed(parts) for page in part]


class Held:
    """The pages that a request held when it was last observed."""

    __slots__ = ("last", "num_own", "num_shared", "pages", "request")

    def __init__(self, request: int) -> None:
        self.request = request
        self.pages: list[int] = []
        self.num_shared = self.num_own = self.last = 0


class RadixWatch(Watch):
    """The last observed state of a radix tree of pages, and of the requests' own pages."""

    def __init__(self, state: Replica) -> None:
        super().__init__(state)
        tree = state.kv.radix
        self.tree = TreeWatch(tree)
        self.waiting_for_kv: dict[int, Held] = {}  # by index of the request's record
        self.refs = [0] * (tree.pages.num_pages + 1)
        self._size = tree.pages.page_size
        self._jump = reader(tree.pages.links, "jump")
        self._before = np.zeros((1 + len(FIELDS), 0), np.int64)

    def see(self, events: list[Change], admitted: dict[int, int], *, scheduled: bool) -> None:
        """Append new keys, then releases, evictions and allocations, in the order of the rules."""
        gone, come = self.tree.changes()
        drops: list[Place] = []
        takes: list[Place] = []
        self._record_requests(admitted, drops, takes)
        fresh = {page for page, _, _ in come}
        renamed = [one for one in gone if one[0] in fresh]
        events += [(EVICT, -1, page, -1, key) for page, key in renamed]
        events += [(STORE, -1, page, before, key) for page, before, key in come]
        for request, page, place in drops:
            self.refs[page] -= 1
            events.append((REF_DROP if self.refs[page] else FREE, request, page, place, 0))
        events += [(EVICT, -1, page, -1, key) for page, key in gone if page not in fresh]
        for request, page, place in takes:
            reused = place * self._size < admitted.get(request, 0)
            kind = HIT if reused else REF_ADD if self.refs[page] else ALLOC
            self.refs[page] += 1
            events.append((kind, request, page, place, self.tree.keys[page] if reused else 0))

    def _read(self) -> NDArray[np.int64]:
        """Return the fields of the requests' records, shape (fields, records)."""
        state, count = self.state, self.state.num_requests
        rows = [column(state.requests, "request_id", count)]
        rows += [column(state.engines.sglang.progress, name, count) for name in FIELDS]
        return np.array(rows, np.int64)

    def _record_requests(
        self, admitted: dict[int, int], drops: list[Place], takes: list[Place]
    ) -> None:
        """Record the pages that requests released and got."""
        now, before = self._read(), self._before
        changed = np.ones(now.shape[1], np.bool_)
        both = min(now.shape[1], before.shape[1])
        changed[:both] = (now[:, :both] != before[:, :both]).any(axis=0)
        self._before = now
        for k in np.flatnonzero(changed).tolist():
            request, row, num_shared, node, page, last, num_own, hit = now[:, k].tolist()
            holds = NONE not in (row, request)
            held = self.waiting_for_kv.get(k)
            if held is not None and not (holds and held.request == request):
                drops += [(held.request, held.pages[p], p) for p in range(len(held.pages))[::-1]]
                del self.waiting_for_kv[k]
                held = None
            if not holds:
                continue
            if held is None:
                held = self.waiting_for_kv[k] = Held(request)
                admitted[request] = hit
            if held.num_shared == num_shared:
                first = held.last + 1 + self._jump(held.last) if held.num_own else page
                new = chain(self._jump, first, num_own - held.num_own)
                takes += [(request, one, p) for p, one in enumerate(new, len(held.pages))]
                held.pages += new
            else:
                own = chain(self._jump, page, num_own)
                pages = self.tree.path(node) + own
                self._replace(held, pages, drops, takes)
            held.num_shared, held.num_own, held.last = num_shared, num_own, last

    @staticmethod
    def _replace(held: Held, now: list[int], drops: list[Place], takes: list[Place]) -> None:
        """Record the difference between a request's last observed pages and its present ones."""
        old = held.pages
        stays = {p for p, (a, b) in enumerate(zip(old, now, strict=False)) if a == b}
        drops += [(held.request, old[p], p) for p in range(len(old))[::-1] if p not in stays]
        takes += [(held.request, one, p) for p, one in enumerate(now) if p not in stays]
        held.pages = now


def pages_of(state: Replica, place: int) -> list[int]:
    """Return the pages of a request under SGLang: its path in the tree, then its own."""
    mine, tree = state.engines.sglang.progress[place], state.kv.radix
    if mine.row == NONE:
        return []
    jump, size = reader(tree.pages.links, "jump"), tree.pages.page_size
    path, node = [], mine.node
    while node:
        one: Any = tree.nodes[node]
        path.append(chain(jump, one.page, (one.end - one.start) // size))
        node = one.parent
    return [*concatenated(*reversed(path)), *chain(jump, mine.page, mine.num_pages)]
