"""A recount of a radix cache's host tier: pages, copies, and the tier of each node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.kv.radix_check import free_pages, next_pages, reads_under_way, under_way
from kvsim.engines.sglang.records.radix import WRITE_BACK
from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.kv.radix_check import Seen, TreeView
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.records.engine import Replica


def check_host(state: Replica, seen: TreeView, nodes: list[Seen]) -> None:
    """Recount pages of the host, marks of copies in flight, and the queue of write_back.

    Raises
    ------
    RuntimeError
        Naming the count or mark that is wrong.
    """
    tree = state.kv.radix
    pages, following = free_pages(tree.host_pages), next_pages(tree.host_pages)
    here = dict.fromkeys([0, *(node.place for node in nodes)], 0)
    for node in nodes:
        record = tree.nodes[node.place]
        if node.on_host_only and not record.has_copy:
            raise RuntimeError("a node has slots on neither tier")
        if not node.on_host_only:
            here[node.parent] += 1
            if seen.rows[node.parent].on_host_only:
                raise RuntimeError("a node is on the GPU and its parent is not")
        page = record.host_page
        for _ in range(node.num_tokens // seen.size if record.has_copy else 0):
            pages.append(page)
            page = following[page]
    for read in reads_under_way(state):
        page = read.page
        for _ in range(read.num_tokens // seen.size):
            pages.append(page)
            page = following[page]
    if sorted(pages) != list(range(tree.host_pages.num_pages)):
        raise RuntimeError(
            f"invariants 2 and 4: {len(pages)} free and used host pages, {len(set(pages))} "
            f"distinct, in a pool of {tree.host_pages.num_pages}"
        )
    for place, count in here.items():
        if tree.nodes[place].num_here != count:
            raise RuntimeError("children on the GPU are miscounted")
    check_copies(state, seen, nodes)
    check_queued(tree, nodes)


def check_copies(state: Replica, seen: TreeView, nodes: list[Seen]) -> None:
    """Recount the nodes locked by copies in flight."""
    tree = state.kv.radix
    pending = {
        node.place
        for copy in under_way(tree.backups)
        for node in seen.ancestors(copy.node, copy.start)
    }
    starts = [(copy.node, copy.start) for copy in under_way(tree.loads)]
    starts += [(read.node, read.node_start) for read in reads_under_way(state)]
    held = dict.fromkeys([node.place for node in nodes], 0)
    for start in starts:
        for node in seen.ancestors(*start):
            held[node.place] += 1
    for place, count in held.items():
        record = tree.nodes[place]
        if record.is_pending != (place in pending) or record.num_host_locks != count:
            raise RuntimeError("invariant 3: a copy in flight is miscounted")


def check_queued(tree: Radix, nodes: list[Seen]) -> None:
    """Check that all nodes marked as queued are in the queue of droppable copies, and no others."""
    queued: list[int] = []
    k, before = tree.queued.head, NONE
    while k != NONE and len(queued) <= len(nodes):
        if tree.queued_places[k].previous != before:
            raise RuntimeError("the queue of copies is wrong")
        queued.append(k)
        before, k = k, tree.queued_places[k].next
    marked = [node.place for node in nodes if tree.nodes[node.place].is_queued]
    on_both = {
        node.place for node in nodes if tree.nodes[node.place].has_copy and not node.on_host_only
    }
    # A node that is being loaded joins the queue at the end of its load.
    in_place = tree.write_policy == WRITE_BACK and tree.loads.count == 0
    if sorted(queued) != sorted(marked) or (in_place and not on_both <= set(queued)):
        raise RuntimeError("a node with a copy is not in the queue")
