"""HiCache's L3: a storage from which prompts are read into host memory while requests wait.

For an arriving request, the storage is searched for tokens of its prompt that both tiers lack. If
there are enough, the request gets pages of the host, and its read is queued. When the request is
tried for admission, a rule decides if it is skipped or continues with the tokens read so far, which
join the tree as if the host had always had them. docs/sglang-rules.md describes the rules.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.radix import WRITE_BACK
from kvsim.engines.sglang.records.storage import BEST_EFFORT, TIMEOUT
from kvsim.engines.sglang.rules.host.backup import evict_copies
from kvsim.engines.sglang.rules.tree.leaves import settle_leaf
from kvsim.engines.sglang.rules.tree.nodes import join_siblings, name_node, new_node, tick
from kvsim.engines.sglang.rules.tree.pages import (
    allocate_chain,
    page_after,
    page_behind,
    return_chain,
)
from kvsim.engines.sglang.rules.tree.pieces import name_tokens, seek
from kvsim.engines.sglang.rules.tree.walk import match_prefix
from kvsim.records.events import STORED
from kvsim.records.record import NONE
from kvsim.rules.events import next_event, record_update
from kvsim.rules.links import append, remove

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.engines.sglang.records.storage import Read, Storage
    from kvsim.records.engine import Replica
    from kvsim.records.request import Request


def begin_read(state: Replica, k: int) -> None:
    """Queue a read of a new request's stored tokens that both tiers lack, if they are enough.

    A read begins at the root, or below a node that the host has as well, since SGLang locks no GPU
    slots for it. Under write_back it begins only at the root: the host may lack the nodes above.
    """
    storage, tree, request = state.storage, state.kv.radix, state.requests[k]
    read, row = storage.reads[k], request.request_id
    read.num_tokens = 0
    if storage.offered[row] == 0:
        return
    match_prefix(tree, request, request.num_tokens - 1)
    start, best = tree.num_walked, tree.best
    num_tokens = storage.offered[row] - start
    if num_tokens < storage.least or start < storage.held[row]:
        return  # in the second case, tokens in between may be missing
    if not has_copy(tree, tree.node) or (tree.write_policy == WRITE_BACK and best != 0):
        return
    hold_node(tree, read, best)
    size = tree.pages.page_size
    short = num_tokens - tree.host_pages.num_left * size
    if short > 0 and evict_copies(tree, short) < short:
        unlock_node(tree, read)
        storage.num_refused += 1
        return
    read.page = tree.host_pages.first
    read.last_page = allocate_chain(tree.host_pages, num_tokens // size)
    read.num_tokens = num_tokens
    read.start = start
    read.asked = state.clock
    read.begins = -1.0
    read.base = storage.base[row]
    read.token_time = storage.token_time[row]
    read.is_done = False
    append(storage.queue, storage.places, k)


def has_copy(tree: Radix, k: int) -> bool:
    """Return True if the host has a node; the root counts as present."""
    return k == 0 or tree.nodes[k].has_copy


def hold_node(tree: Radix, read: Read, k: int) -> None:
    """Lock a node on the host."""
    read.node = k
    if k == 0:
        return
    read.node_start = tree.nodes[k].start
    tree.nodes[k].num_host_locks += 1
    settle_leaf(tree, k)


def unlock_node(tree: Radix, read: Read) -> None:
    """Unlock a read's node on the host."""
    at = read.node
    while at != 0 and tree.nodes[at].start >= read.node_start:
        tree.nodes[at].num_host_locks -= 1
        settle_leaf(tree, at)
        at = tree.nodes[at].parent


def end_of_read(read: Read) -> float:
    """Return the end time of a read in flight."""
    return read.begins + (read.base + read.num_tokens * read.token_time)


def advance_reads(storage: Storage, now: float) -> None:
    """Advance the reads, one after another on the link, up to a time."""
    k = storage.queue.head
    while k != NONE:
        read = storage.reads[k]
        if read.begins < 0:
            read.begins = max(storage.free_time, read.asked)
        end = end_of_read(read)
        if end > now:
            return
        storage.free_time = end
        storage.seconds += end - read.begins
        read.is_done = True
        remove(storage.queue, storage.places, k)
        k = storage.queue.head


def num_read(read: Read, now: float, page_size: int) -> int:
    """Count the tokens, in whole pages, that have been read so far."""
    if read.is_done:
        return read.num_tokens
    seconds = now - read.begins - read.base
    if read.begins < 0 or seconds <= 0:
        return 0
    if seconds >= read.num_tokens * read.token_time:
        return read.num_tokens
    return int(seconds / read.token_time) // page_size * page_size


def goes_on_at(storage: Storage, read: Read) -> float:
    """Return the time at which a request stops waiting for its read; ``inf`` for never."""
    if storage.stop_rule == BEST_EFFORT:
        return -math.inf
    if storage.stop_rule == TIMEOUT:
        return read.asked + (storage.timeout + read.num_tokens * storage.timeout_per_token)
    return math.inf


def settle_read(state: Replica, k: int) -> bool:
    """End the read of a request that may continue; False if it has to wait."""
    storage, tree = state.storage, state.kv.radix
    read = storage.reads[k]
    if read.num_tokens == 0:
        return True
    now = max(state.clock, tree.held_until)
    advance_reads(storage, now)
    if not read.is_done and now < goes_on_at(storage, read):
        return False
    end_read(state, k, num_read(read, now, tree.pages.page_size), now)
    return True


def end_read(state: Replica, k: int, num_tokens: int, now: float) -> None:
    """Insert the first ``num_tokens`` tokens of a read into the tree, and free its other pages."""
    storage, tree, request = state.storage, state.kv.radix, state.requests[k]
    read, size, pages = storage.reads[k], tree.pages.page_size, tree.host_pages
    if not read.is_done:
        if read.begins >= 0:
            storage.free_time = max(read.begins, now)
            storage.seconds += storage.free_time - read.begins
        remove(storage.queue, storage.places, k)
    unlock_node(tree, read)
    number, page = num_tokens // size, read.page
    rest = read.num_tokens // size - number
    read.num_tokens = 0
    if number == 0:
        return_chain(pages, page, read.last_page, rest)
        return
    storage.num_reads += 1
    storage.num_tokens += num_tokens
    last = page_behind(pages, page, number - 1)
    if rest > 0:
        return_chain(pages, page_after(pages, last), read.last_page, rest)
    stop = read.start + num_tokens
    match_prefix(tree, request, stop)
    had, parent = tree.num_walked, tree.best
    known = (had - read.start) // size
    if had < read.start or not has_copy(tree, parent):
        known = number  # the node before the read is gone, or only on the GPU
    known = min(known, number)
    if known > 0:
        end = page_behind(pages, page, known - 1)
        following = page_after(pages, end)
        return_chain(pages, page, end, known)
        page = following
    if known < number:
        add_copy(tree, request, parent, had, stop, page, last)


def add_copy(
    tree: Radix, request: Request, parent: int, start: int, stop: int, page: int, last_page: int
) -> None:
    """Insert host pages with a request's tokens as a leaf that is on the host only."""
    k = new_node(tree, parent, start, stop, 0, 0)
    node = tree.nodes[k]
    node.on_host_only = True
    node.has_copy = True
    node.host_page = page
    node.host_last = last_page
    node.created = node.last_access = tick(tree)
    node.priority = request.priority
    node.reach = stop
    node.row = request.request_id
    seek(tree, request, 0, start)
    name_tokens(tree, tree.host_pieces, tree.host_pages, request, page, stop - start)
    name_node(tree, k, request.cache_salt if parent == 0 else 0)
    join_siblings(tree, k)
    tree.nodes[parent].num_here -= 1
    settle_leaf(tree, parent)
    settle_leaf(tree, k)


def next_read(state: Replica) -> float:
    """Return the time at which the first request that waits for a read may continue, or ``inf``."""
    storage, first = state.storage, math.inf
    advance_reads(storage, max(state.clock, state.kv.radix.held_until))
    k = storage.queue.head
    if k != NONE:
        first = end_of_read(storage.reads[k])
    while k != NONE:
        first = min(first, goes_on_at(storage, storage.reads[k]))
        k = storage.places[k].next
    return first


def publish_copies(state: Replica) -> None:
    """Log the tokens copied to the host since the last pass, for the storage.

    Evictions are not logged: the storage does not follow the hosts' contents.
    """
    tree, log = state.kv.radix, state.kv.pool.log
    for place in range(tree.num_told):
        told = tree.told[place]
        event = next_event(log, STORED, 0)
        event.row = told.row
        event.first = told.start
        event.stop = told.stop
        event.first_key = log.num_keys
        event.key_count = 0
    tree.num_told = 0
    record_update(log, max(state.clock, tree.held_until))
