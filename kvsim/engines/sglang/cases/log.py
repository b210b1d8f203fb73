"""Log entry of a pass of SGLang's loop; docs/reference/files.md lists the fields."""

from __future__ import annotations

from functools import lru_cache
from itertools import chain, starmap
from typing import TYPE_CHECKING, Any

from kvsim.cases.player import add, checksum, linked
from kvsim.engines.sglang.cases.case import adapter_name
from kvsim.engines.sglang.kv.radix_check import TreeView, free_pages, holders, own_slots
from kvsim.engines.sglang.kv.state_check import free_states
from kvsim.engines.sglang.records.scheduler import DECODE, EXTEND, MIXED
from kvsim.engines.sglang.rules.speculation import slots_of_row
from kvsim.records.memory import head
from kvsim.records.record import NONE
from kvsim.rules.batch import batch_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.cases.player import Entry
    from kvsim.engines.sglang.records.radix import Radix
    from kvsim.records.engine import Replica

#: Longest list of slots, of waiting ids and of states that is written out.
MOST_SLOTS, MOST_WAITING, MOST_STATES = 40, 64, 4
LETTERS = {EXTEND: "E", MIXED: "M", DECODE: "D"}


def tree_rows(seen: TreeView) -> tuple[int, int]:
    """Return the checksums of all slots of the tree, and of its unlocked slots.

    Each slot is paired with its position and with the slot before it.
    """
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
    return row_sum(tuple(every)), row_sum(tuple(unlocked))


@lru_cache(2)  # most passes leave the tree as it is
def row_sum(rows: tuple[tuple[int, ...], ...]) -> int:
    """Return the checksum of sorted rows."""
    text = ":".join(["%d"] * len(rows[0])) if rows else ""
    return checksum([text % row for row in sorted(rows)], ";")


def host_slots(tree: Radix) -> tuple[int, int]:
    """Return the number of free host slots, and their checksum in the order of allocation."""
    size = tree.pages.page_size
    slots = [page * size + k for page in free_pages(tree.host_pages) for k in range(size)]
    return len(slots), checksum(slots)


def window_rows(seen: TreeView) -> tuple[int, int]:
    """Return the checksums of the tree's slots with window slots, and of those without locks.

    Each slot is paired with its position.
    """
    every, unlocked = [], []
    for node in seen.nodes():
        if not node.is_tombstone:
            slots = seen.slots(node.page, node.num_tokens)
            rows = list(zip(slots, range(node.start, node.end), strict=True))
            every += rows
            unlocked += rows if node.num_window_locks == 0 else []
    return row_sum(tuple(every)), row_sum(tuple(unlocked))


def window_map(seen: TreeView, state: Replica) -> list[int]:
    """Return the window slot of every slot, 0 for none, up to one page after the pool.

    Only slots in use have one: the slot at the same position in the window page of their page.
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


def tree_columns(tree: Radix, seen: TreeView, free: list[int]) -> Entry:
    """Return the columns of the tree, its pool and the host's."""
    columns: Entry = {"av": tree.pages.num_unused_slots}
    columns["ev"], columns["pr"] = tree.num_evictable, tree.num_protected
    columns["fq"] = checksum(free)
    if tree.enabled:
        columns["th"], columns["tu"] = tree_rows(seen)
    if tree.has_states:
        columns |= state_columns(tree, seen)
    if tree.write_policy:
        columns["ha"], columns["hq"] = host_slots(tree)
    return columns


def state_columns(tree: Radix, seen: TreeView) -> Entry:
    """Return the columns of the free state slots, and of the state slots in the tree."""
    free = free_states(tree.states)
    columns = {"ma": len(free), "mq": checksum(free)}
    if tree.enabled:
        held = [node for k in seen.nodes() if (node := tree.nodes[k.place]).state]
        locked = sum(node.num_state_locks > 0 for node in held)
        columns |= {"mev": len(held) - locked, "mpr": locked}
        columns["mt"] = checksum(sorted(node.state for node in held))
    return columns


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

    def _named(self, places: Iterable[int]) -> list[str] | None:
        return [self._name(k) for k in places] or None

    def scheduled(self, entry: Entry) -> bool:
        """Add the decisions of a pass; return True if there is a batch. Mutates the entry."""
        state, scheduler = self._state, self._state.engines.sglang
        if scheduler.adapters.is_on:
            self._loads(entry)
        if scheduler.last_mode in LETTERS:
            self._batch(entry)
        taken = head(scheduler.preempted, scheduler.num_preempted)
        gone = head(state.preempted, state.num_preempted)
        add(entry, pre=self._named(taken), ret=self._named(k for k in gone if k not in taken))
        return "m" in entry

    def _loads(self, entry: Entry) -> None:
        """Add the loaded adapters and, if there is a batch, all buffers. Mutates the entry."""
        adapters = self._state.engines.sglang.adapters
        filled = head(adapters.loaded, adapters.num_loaded)
        loads = [[adapter_name(adapters.buffers[at]), at] for at in filled]
        add(entry, ll=loads or None)
        if self._state.engines.sglang.last_mode in LETTERS:
            found = head(adapters.buffers, adapters.most)
            entry["lb"] = [0 if one == NONE else adapter_name(one) for one in found]

    def _batch(self, entry: Entry) -> None:
        state = self._state
        batch, progress = batch_at(state, state.num_batches - 1), state.engines.sglang.progress
        rows = [batch.entries[at] for at in range(batch.size)]
        extends, decodes = rows[: batch.num_extends], rows[batch.num_extends :]
        seen = TreeView(state.kv.radix)
        verifies = state.engines.sglang.speculation.is_on and not extends
        new = list(chain.from_iterable(self._new_slots(seen, e) for e in rows))
        add(
            entry,
            m=LETTERS[state.engines.sglang.last_mode],
            ext=[[self._name(e.request), e.end - e.num_tokens, e.num_tokens] for e in extends]
            or None,
            ld=self._loaded(extends),
            dec=self._named(e.request for e in decodes),
            loc=None if verifies else checksum(new),
            locl=new if len(new) <= MOST_SLOTS and not verifies else None,
        )
        if verifies:
            of = [(state.requests[e.request], progress[e.request]) for e in rows]
            entry["al"] = list(starmap(slots_of_row, of))
            entry["acc"] = [1 + e.num_accepted for e in rows]
        if state.kv.radix.has_states and extends:
            entry.update(self._states_of(extends, len(decodes)))

    def _loaded(self, extends: Sequence[Any]) -> list[Any] | None:
        """Return the tokens loaded from the host for each request in its first prefill."""
        progress = self._state.engines.sglang.progress
        firsts = [e.request for e in extends if progress[e.request].num_extends == 1]
        loads = [[self._name(k), progress[k].num_loaded] for k in firsts if progress[k].num_loaded]
        return loads or None

    def _states_of(self, extends: Sequence[Any], num_decodes: int) -> Entry:
        """Return a prefill's actions on states: branches, depths, copies, and slots zeroed."""
        scheduler, tree = self._state.engines.sglang, self._state.kv.radix
        of = [
            (e.request, scheduler.progress[e.request], scheduler.held[e.request]) for e in extends
        ]
        fresh = [held for _, mine, held in of if mine.num_extends == 1]
        depths = [held.tracked for _, _, held in of] + [0] * num_decodes
        found: Entry = {}
        add(
            found,
            mb=[[self._name(k), mine.branch] for k, mine, _ in of if mine.branch] or None,
            tk=depths if tree.states.num_places else None,
            cow=[[held.copied, held.own] for held in fresh if held.copied] or None,
            clr=[held.own for held in fresh if not held.copied] or None,
        )
        return found

    def _holders(self) -> list[int]:
        """Return the requests with a row, in order of arrival."""
        state = self._state
        return sorted(holders(state), key=lambda k: self._order[state.requests[k].request_id])

    def _holdings(self) -> list[str]:
        """Return the slots of states of each request, in order of arrival."""
        state, found = self._state, []
        num_places = state.kv.radix.states.num_places
        for k in self._holders():
            held = state.engines.sglang.held[k]
            text = f"{self._name(k)}:{held.own}"
            if num_places:
                slots = [held.first, held.second][:num_places]
                places = ",".join(str(slot or -1) for slot in slots)
                text += f":{places}:{held.next}:{held.last}:{held.depth}"
            found.append(text)
        return found

    def _new_slots(self, seen: TreeView, e: Any) -> list[int]:
        mine = self._state.engines.sglang.progress[e.request]
        slots = own_slots(seen, self._state, e.request)
        first = e.end - e.num_tokens - mine.num_shared
        return slots[first : first + e.num_tokens]

    def processed(self, entry: Entry, finished: list[int]) -> None:
        """Add the ended requests and the state at the end of the pass. Mutates the entry."""
        state, scheduler, tree = self._state, self._state.engines.sglang, self._state.kv.radix
        ended = [self._names[row] for row in sorted(finished, key=self._order.__getitem__)]
        queue = linked(state.requests, state.waiting.head)
        waiting = [self._names[request.request_id] for request in queue]
        seen = TreeView(tree)
        free = seen.free_pages()
        add(
            entry,
            fin=ended or None,
            w=waiting if len(waiting) <= MOST_WAITING else len(waiting),
            r=self._named(head(scheduler.running, scheduler.num_running)) or [],
            ck=self._name(scheduler.chunked) if scheduler.chunked >= 0 else None,
            full=1 if scheduler.is_full else None,
            ntr=round(scheduler.ratio, 9),
            fql=free if len(free) <= MOST_SLOTS else None,
            rt=checksum(self._rows(seen), ";"),
            rs=checksum(head(scheduler.rows, scheduler.num_rows)),
            **tree_columns(tree, seen, free),
        )
        if scheduler.speculation.is_on:
            pairs = [(k, state.requests[k]) for k in self._holders()]
            entry["km"] = [
                [self._name(k), one.num_computed_tokens, one.num_output_tokens] for k, one in pairs
            ]
        if tree.window:
            self._windows(entry, seen)
        if tree.has_states:
            self._add_states(entry)

    def _add_states(self, entry: Entry) -> None:
        """Add the slots of states. Mutates the entry."""
        rows, unused = self._holdings(), free_states(self._state.kv.radix.states)
        entry["mr"] = checksum(rows, ";")
        add(entry, mrl=rows if len(rows) <= MOST_STATES else None)
        add(entry, mql=unused if len(unused) <= MOST_SLOTS else None)

    def _windows(self, entry: Entry, seen: TreeView) -> None:
        """Add the pool of sliding windows, and the slots in use. Mutates the entry."""
        tree = self._state.kv.radix
        entry["av2"] = tree.window_pages.num_unused_slots
        entry["ev2"], entry["pr2"] = tree.window_evictable, tree.window_protected
        entry["sq"] = checksum(free_pages(tree.window_pages))
        entry["mp"] = checksum(window_map(seen, self._state))
        if tree.enabled:
            entry["ts"], entry["tsu"] = window_rows(seen)

    def _rows(self, seen: TreeView) -> list[str]:
        """Return the slots of each request, in order of arrival."""
        state, found = self._state, []
        held = holders(state)
        for k in sorted(held, key=lambda k: self._order[state.requests[k].request_id]):
            mine = state.engines.sglang.progress[k]
            slots = seen.path(mine.node) + own_slots(seen, state, k)
            text = ",".join(map(str, slots))
            found.append(f"{self._name(k)}:{mine.row}:{mine.num_shared}:{text}")
        return found
