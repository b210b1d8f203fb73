"""A recount of a radix cache's pool of sliding windows: slots, locks, and the list of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.kv.radix_check import free_pages, holders, listed_nodes, split_by_lock

if TYPE_CHECKING:
    from kvsim.engines.sglang.kv.radix_check import Seen, TreeView
    from kvsim.records.engine import Replica


def check_windows(state: Replica, seen: TreeView, nodes: list[Seen]) -> None:
    """Recount the window slots of nodes and requests.

    Raises
    ------
    RuntimeError
        Naming the count or mark that is wrong.
    """
    tree = state.kv.radix
    used, slid = [], 0
    for node in nodes:
        pages = [tree.windows[p] for p in seen.chain(node.page, node.num_tokens // seen.size)]
        if any((page == 0) != bool(node.is_tombstone) for page in pages):
            raise RuntimeError("a node has window slots of some tokens, or a wrong tombstone mark")
        used += [page for page in pages if page]
    for k in holders(state):
        mine = state.engines.sglang.progress[k]
        dead = max(mine.dead - mine.num_shared, 0)
        slid += dead
        pages = [tree.windows[p] for p in seen.chain(mine.page, mine.num_pages)]
        if any((page == 0) != (place < dead // seen.size) for place, page in enumerate(pages)):
            raise RuntimeError("the window slots of a request do not match its window")
        used += [page for page in pages if page]
    if slid != tree.num_slid_tokens:
        raise RuntimeError("tokens without window slots are miscounted")
    pages = free_pages(tree.window_pages) + used
    if sorted(pages) != list(range(1, tree.window_pages.num_pages + 1)):
        raise RuntimeError(
            f"invariants 2 and 4: {len(pages)} free and used window pages, {len(set(pages))} "
            f"distinct, in a pool of {tree.window_pages.num_pages}"
        )
    check_window_locks(state, seen, nodes)
    check_recent(state, nodes)


def check_window_locks(state: Replica, seen: TreeView, nodes: list[Seen]) -> None:
    """Recount the window locks of every node, and the window tokens that may be evicted."""
    tree, locks = state.kv.radix, dict.fromkeys([node.place for node in nodes], 0)
    for k in holders(state):
        mine = state.engines.sglang.progress[k]
        at, edge = mine.node, mine.edge
        while at:
            locks[at] += 1
            at = 0 if edge and seen.rows[at].edge == edge else seen.rows[at].parent
    for node in nodes:
        if node.num_window_locks != locks[node.place]:
            raise RuntimeError(
                f"invariant 3: a node counts {node.num_window_locks} window locks, "
                f"not {locks[node.place]}"
            )
    windowed = [node for node in nodes if not node.is_tombstone]
    if split_by_lock(windowed, locks) != (tree.window_protected, tree.window_evictable):
        raise RuntimeError("protected or evictable window tokens are miscounted")


def check_recent(state: Replica, nodes: list[Seen]) -> None:
    listed = sorted(node.place for node in nodes if not node.is_tombstone)
    if listed_nodes(state.kv.radix, len(nodes)) != listed:
        raise RuntimeError("the list of nodes with window slots is wrong")
