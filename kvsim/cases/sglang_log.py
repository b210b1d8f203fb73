"""What a pass of SGLang's loop leaves in a log; docs/reference/files.md lists the fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from kvsim.kv.radix_check import TreeView, free_pages, holders, own_slots
from kvsim.records.memory import head
from kvsim.records.sglang import DECODE, EXTEND, MIXED
from kvsim.rules.batch import batch_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.records.engine import Replica
    from kvsim.records.radix import Radix

#: Longest lists that are written out, and longest queue whose ids are.
MOST_SLOTS, MOST_WAITING = 40, 64
LETTERS = {EXTEND: "E", MIXED: "M", DECODE: "D"}


def checksum(values: Iterable[object], separator: str = ",") -> int:
    """Return the CRC-32 of values written one after another."""
    return crc32(separator.join(map(str, values)).encode())


def tree_rows(seen: TreeView) -> tuple[int, int]:
    """Return the checksums of all slots of the tree with what is before each, and of those free."""
    every, unlocked, last = [], [], {0: -1}
    for node in seen.nodes():
        if node.on_host_only:
            continue
        slots = seen.slots(node.page, node.num_tokens)
        before = [last[node.parent], *slots]
        last[node.place] = slots[-1]
        rows = list(zip(slots, range(node.start, node.end), before, strict=False))
        every += rows
        if node.num_locks == 0:
            unlocked += rows
    return row_sum(every), row_sum(unlocked)


def row_sum(rows: Iterable[tuple[int, ...]]) -> int:
    """Return the checksum of sorted rows."""
    return checksum((":".join(map(str, row)) for row in sorted(rows)), ";")


def host_slots(tree: Radix) -> tuple[int, int]:
    """Return the number of free slots of the host, and their checksum, the next one out first."""
    size = tree.pages.page_size
    slots = [page * size + k for page in free_pages(tree.host_pages) for k in range(size)]
    return len(slots), checksum(slots)


def window_rows(seen: TreeView) -> tuple[int, int]:
    """Return the checksums of the tree's slots that have window slots, and of those nobody holds.

    Each slot stands with its position.
    """
    every, unlocked = [], []
    for node in seen.nodes():
        if not node.is_tombstone:
            slots = seen.slots(node.page, node.num_tokens)
            rows = list(zip(slots, range(node.start, node.end), strict=True))
            every += rows
            unlocked += rows if node.num_window_locks == 0 else []
    return row_sum(every), row_sum(unlocked)


def window_map(seen: TreeView, state: Replica) -> list[int]:
    """Return the window slot of every slot from 0 on, of the page behind the pool, too; 0 if none.

    A page is mapped whole, but only its slots that are in use.
    """
    tree = state.kv.radix
    used = [slot for node in seen.nodes() for slot in seen.slots(node.page, node.num_tokens)]
    used += [slot for k in holders(state) for slot in own_slots(seen, state, k)]
    found = [0] * ((tree.pages.num_pages + 1) * seen.size)
    for slot in used:
        page, place = divmod(slot, seen.size)
        if tree.windows[page]:
            found[slot] = tree.windows[page] * seen.size + place
    return found


class PassLog:
    """Turns passes of a replica's loop into log entries.

    Parameters
    ----------
    state : the replica's state, after each pass
    names : ids by row
    arrivals : rows in order of arrival
    """

    def __init__(self, state: Replica, names: Sequence[str], arrivals: Sequence[int]) -> None:
        self._state, self._names = state, names
        self._order = {row: place for place, row in enumerate(arrivals)}

    def _name(self, k: int) -> str:
        return self._names[self._state.requests[k].request_id]

    def scheduled(self, entry: dict[str, Any]) -> bool:
        """Add what was decided; returns whether there is a batch. Mutates the entry."""
        state, scheduler = self._state, self._state.sglang
        if scheduler.last_mode in LETTERS:
            batch = batch_at(state, state.num_batches - 1)
            entry["m"] = LETTERS[scheduler.last_mode]
            rows = [batch.entries[at] for at in range(batch.size)]
            extends, decodes = rows[: batch.num_extends], rows[batch.num_extends :]
            if extends:
                entry["ext"] = [
                    [self._name(e.request), e.end - e.num_tokens, e.num_tokens] for e in extends
                ]
                loaded = [
                    [self._name(e.request), state.sglang.progress[e.request].num_loaded]
                    for e in extends
                    if self._is_first(e) and state.sglang.progress[e.request].num_loaded
                ]
                if loaded:
                    entry["ld"] = loaded
            if decodes:
                entry["dec"] = [self._name(e.request) for e in decodes]
            seen = TreeView(state.kv.radix)
            new = [slot for e in rows for slot in self._new_slots(seen, e)]
            entry["loc"] = checksum(new)
            if len(new) <= MOST_SLOTS:
                entry["locl"] = new
        gone = [state.preempted[k] for k in range(state.num_preempted)]
        taken = [scheduler.preempted[k] for k in range(scheduler.num_preempted)]
        if taken:
            entry["pre"] = [self._name(k) for k in taken]
        retracted = [self._name(k) for k in gone if k not in taken]
        if retracted:
            entry["ret"] = retracted
        return "m" in entry

    def _is_first(self, e: Any) -> bool:
        """Whether a prefill is a request's first since it was admitted."""
        return bool(self._state.sglang.progress[e.request].num_extends == 1)

    def _new_slots(self, seen: TreeView, e: Any) -> list[int]:
        mine = self._state.sglang.progress[e.request]
        slots = own_slots(seen, self._state, e.request)
        first = e.end - e.num_tokens - mine.num_shared
        return slots[first : first + e.num_tokens]

    def processed(self, entry: dict[str, Any], finished: list[int]) -> None:
        """Add who has ended, by row, and the state at the end of the pass. Mutates the entry."""
        state, scheduler, tree = self._state, self._state.sglang, self._state.kv.radix
        if finished:
            ended = sorted(finished, key=self._order.__getitem__)
            entry["fin"] = [self._names[row] for row in ended]
        waiting, k = [], state.waiting.head
        while k >= 0:
            waiting.append(self._name(k))
            k = state.requests[k].next
        entry["w"] = waiting if len(waiting) <= MOST_WAITING else len(waiting)
        running = [scheduler.running[k] for k in range(scheduler.num_running)]
        entry["r"] = [self._name(k) for k in running]
        if scheduler.chunked >= 0:
            entry["ck"] = self._name(scheduler.chunked)
        if scheduler.is_full:
            entry["full"] = 1
        entry["ntr"] = round(scheduler.ratio, 9)
        entry["av"] = tree.pages.num_unused_slots
        entry["ev"], entry["pr"] = tree.num_evictable, tree.num_protected
        free = free_pages(tree.pages)
        entry["fq"] = checksum(free)
        if len(free) <= MOST_SLOTS:
            entry["fql"] = free
        seen = TreeView(tree)
        entry["rt"] = checksum(self._rows(seen), ";")
        entry["rs"] = checksum(head(scheduler.rows, scheduler.num_rows))
        if tree.enabled:
            entry["th"], entry["tu"] = tree_rows(seen)
        if tree.window:
            self._windows(entry, seen)
        if tree.write_policy:
            entry["ha"], entry["hq"] = host_slots(tree)

    def _windows(self, entry: dict[str, Any], seen: TreeView) -> None:
        """Add the pool of sliding windows, and who has slots of it. Mutates the entry."""
        tree = self._state.kv.radix
        entry["av2"] = tree.window_pages.num_unused_slots
        entry["ev2"], entry["pr2"] = tree.window_evictable, tree.window_protected
        entry["sq"] = checksum(free_pages(tree.window_pages))
        entry["mp"] = checksum(window_map(seen, self._state))
        if tree.enabled:
            entry["ts"], entry["tsu"] = window_rows(seen)

    def _rows(self, seen: TreeView) -> list[str]:
        """Return who holds which slots, in order of arrival."""
        state, found = self._state, []
        held = holders(state)
        for k in sorted(held, key=lambda k: self._order[state.requests[k].request_id]):
            mine = state.sglang.progress[k]
            slots = seen.path(mine.node) + own_slots(seen, state, k)
            text = ",".join(map(str, slots))
            found.append(f"{self._name(k)}:{mine.row}:{mine.num_shared}:{text}")
        return found
