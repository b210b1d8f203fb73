"""Recorded operations on SGLang's radix tree: matches, inserts, locks and evictions, one by one."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.cases.player import Player, add, checksum
from kvsim.cases.rows import contents_of_rows, num_tokens, numbers, offsets
from kvsim.engines.sglang.cases.case import parts_of
from kvsim.engines.sglang.cases.log import tree_columns
from kvsim.engines.sglang.cases.tokens import prompt_pieces
from kvsim.engines.sglang.kv.radix_check import TreeView
from kvsim.engines.sglang.rules.direct import NO_ROOM
from kvsim.records.engine import (
    EVICT,
    EVICT_STATES,
    INSERT,
    INSERT_ALL,
    LOAD,
    LOCK,
    MATCH,
    SEE_COPIES,
    UNLOCK,
)
from kvsim.records.memory import head

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.cases.player import Entry
    from kvsim.engine.contents import Contents
    from kvsim.engines.sglang.cases.case import RadixCase
    from kvsim.engines.sglang.records.radix import Radix


class Handle(NamedTuple):
    """A node at which an operation ended."""

    place: int
    end: int
    created: int

    @classmethod
    def of(cls, tree: Radix, place: int) -> Handle:
        return cls(place, tree.nodes[place].end, tree.nodes[place].created)

    def is_alive(self, tree: Radix) -> bool:
        """Return True if the node is still in the tree."""
        alive = {0, *(node.place for node in TreeView(tree).nodes())}
        return self.place in alive and self == Handle.of(tree, self.place)


def keys_of(ops: Sequence[list[Any]]) -> Contents:
    """Return one request per operation: its prompt is the key, or one token if there is no key."""
    given = [op if isinstance(op[1], list) else [op[0], [[0, 0, 1]], None, 0] for op in ops]
    contents = [prompt_pieces(op[1]) for op in given]
    lists: dict[str, Any] = {
        "num_prompt_tokens": [num_tokens(one) for one in contents],
        "max_tokens": [1] * len(given),
        "segment_offsets": offsets(contents),
        "output_content_id": [2] * len(given),
        "priority": [(op[3] or 0) if len(op) > 3 else 0 for op in given],
        "cache_salt": numbers(op[2] for op in given),
    }
    return contents_of_rows(lists, [*chain.from_iterable(contents)])


class RadixPlayer(Player):
    """Executes the operations of a case, one per step."""

    def __init__(self, case: RadixCase, *, compiled: bool) -> None:
        super().__init__(parts_of(case.config.schedule), keys_of(case.ops), compiled=compiled)
        self._ops, self._tree = case.ops, self.state.kv.radix
        self._has_host = case.config.tier is not None
        self._ended: dict[int, Handle] = {}  # last node of each operation
        if not self._has_host and not self._tree.has_states:
            self.replica.log_frees(4 * case.config.size)

    def has_work(self, step: int) -> bool:
        return step < len(self._ops)

    def begin(self, step: int) -> Entry | None:
        return {"s": step}

    def advance(self, entry: Entry) -> bool:
        row, tree, size = entry["s"], self._tree, self._tree.pages.page_size
        op = self._ops[row]
        entry.update(OPERATIONS.get(op[0], RadixPlayer._evict)(self, row, op))
        if self._has_host:
            self.replica.operate(SEE_COPIES, 0)
        log = head(tree.pages.log, tree.pages.num_logged)
        tree.pages.num_logged = 0
        if log:
            pairs = zip(log[::2], log[1::2], strict=True)
            entry["fr"] = [[count * size, page * size] for count, page in pairs]
        seen = TreeView(tree)
        entry.update(tree_columns(tree, seen, seen.free_pages()))
        if self._has_host:
            del entry["tu"]
        return True

    def _match(self, row: int, op: list[Any]) -> Entry:
        tree = self._tree
        self.replica.operate(MATCH, row)
        self._ended[row] = Handle.of(tree, tree.node)
        found = {"hit": tree.num_found}
        if op[0] == "m":
            found["ix"] = checksum(TreeView(tree).path(tree.node))
        if tree.has_states:
            walked = tree.num_walked // tree.states.step * tree.states.step
            add(found, br=walked if walked > tree.num_found else None)
        if op[0] == "b" or self._has_host:
            found["hh"] = tree.num_walked - tree.num_found
        return found

    def _load(self, row: int, op: list[Any]) -> Entry:
        found = self._match(row, op)
        if found["hh"]:
            found["ok"] = int(self.replica.operate(LOAD, self._tree.best) > 0)
            if found["ok"]:
                self._ended[row] = Handle.of(self._tree, self._tree.best)
        return found

    def _insert(self, row: int, op: list[Any]) -> Entry:
        found = self.replica.operate(INSERT if op[0] == "i" else INSERT_ALL, row)
        if found == NO_ROOM:
            return {"oom": 1}
        self._ended[row] = Handle.of(self._tree, self._tree.node)
        return {"p": self._tree.num_found, **({"x": 1} if found else {})}

    def _lock(self, row: int, op: list[Any]) -> Entry:
        handle = self._ended.get(op[1])
        if handle is None or not handle.is_alive(self._tree):
            return {"err": 1}
        if op[0] == "l":
            self._ended[row] = handle
        else:
            del self._ended[op[1]]
        self.replica.operate(LOCK if op[0] == "l" else UNLOCK, handle.place)
        return {}

    def _evict_states(self, _: int, op: list[Any]) -> Entry:
        return {"n": self.replica.operate(EVICT_STATES, op[1])}

    def _evict(self, _: int, op: list[Any]) -> Entry:
        return {"n": self.replica.operate(EVICT, op[1])}


#: Method of each operation, by its letter; all other letters evict.
OPERATIONS = {
    "m": RadixPlayer._match,
    "b": RadixPlayer._load,
    "i": RadixPlayer._insert,
    "I": RadixPlayer._insert,
    "l": RadixPlayer._lock,
    "u": RadixPlayer._lock,
    "s": RadixPlayer._evict_states,
}
