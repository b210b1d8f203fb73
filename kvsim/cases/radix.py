"""Recorded operations on SGLang's radix tree: matches, inserts, locks and evictions, one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field

from kvsim.cases.part import Count, Part
from kvsim.cases.sglang import HostTier, SglangCaseConfig, parts_of
from kvsim.cases.sglang_log import checksum, host_slots, tree_rows
from kvsim.cases.sglang_tokens import numbers, pieces, rows_of, spans
from kvsim.engine.contents import Contents
from kvsim.engine.replica import Replica
from kvsim.kv.radix_check import TreeView, free_pages
from kvsim.records.engine import (
    EVICT,
    INSERT,
    INSERT_ALL,
    LOAD,
    LOCK,
    MATCH,
    SEE_COPIES,
    UNLOCK,
)
from kvsim.results.tables import REQUESTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.records.radix import Radix


class RadixCaseConfig(Part):
    """A pool, and what is evicted first."""

    page_size: Count
    size: Count
    policy: str
    policy_config: dict[str, int] | None = None
    write_policy: Any = None
    host_size: int | None = None

    @property
    def tier(self) -> HostTier | None:
        """The memory of the host, if there is some."""
        if self.write_policy is None:
            return None
        return HostTier(write_policy=self.write_policy, size=self.host_size)

    @property
    def schedule(self) -> SglangCaseConfig:
        """The configuration of a schedule over the same tree."""
        return SglangCaseConfig(
            page_size=self.page_size,
            max_total_num_tokens=self.size,
            max_running_requests=1,
            chunked_prefill_size=None,
            max_prefill_tokens=16384,
            schedule_policy="fcfs",
            schedule_conservativeness=1.0,
            enable_mixed_chunk=False,
            overlap=False,
            radix_eviction_policy=self.policy,
            disable_radix_cache=False,
            enable_priority_scheduling=False,
            schedule_low_priority_values_first=False,
            priority_scheduling_preemption_threshold=10,
            disable_priority_preemption=False,
            retraction_policy="length",
            context_length=1 << 30,
            eviction_config=self.policy_config or {},
            hicache=self.tier,
        )


class RadixCase(Part):
    """Operations on a tree, and what each left in the log."""

    name: str = "case"
    sglang: str
    config: RadixCaseConfig
    ops: Annotated[list[list[Any]], Field(min_length=1)]
    log: Annotated[list[dict[str, Any]], Field(min_length=1)]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The log, by number of the operation."""
        return [{"s": k, **entry} for k, entry in enumerate(self.log)]


class Handle(NamedTuple):
    """A node as an operation left it."""

    place: int
    end: int
    created: int

    @classmethod
    def of(cls, tree: Radix, place: int) -> Handle:
        """Return a handle of a node."""
        return cls(place, tree.nodes[place].end, tree.nodes[place].created)

    def is_alive(self, tree: Radix) -> bool:
        """Whether the node is still in the tree."""
        alive = {0, *(node.place for node in TreeView(tree).nodes())}
        return self.place in alive and self == Handle.of(tree, self.place)


def keys_of(case: RadixCase) -> Contents:
    """Return the key of every operation as a request of that row; others are one token."""
    given = [op if isinstance(op[1], list) else [op[0], [[0, 0, 1]], None, 0] for op in case.ops]
    contents = [[p for span in spans(op[1]) for p in pieces(*span)] for op in given]
    segments, offsets = rows_of(contents)
    lists: dict[str, Any] = {
        "num_prompt_tokens": [sum(n for _, _, n in one) for one in contents],
        "max_tokens": np.ones(len(given)),
        "segment_offsets": offsets,
        "output_content_id": np.full(len(given), 2),
        "priority": [(op[3] or 0) if len(op) > 3 else 0 for op in given],
        "cache_salt": numbers(op[2] for op in given),
    }
    return Contents({name: np.array(rows) for name, rows in lists.items()}, segments)


def play_radix(case: RadixCase, *, compiled: bool = False) -> Iterator[dict[str, Any]]:
    """Yield what every operation leaves in the log."""
    table = np.zeros(1, dtype=REQUESTS)
    replica = Replica(
        0, parts_of(case.config.schedule), keys_of(case), table, start_time=0.0, compiled=compiled
    )
    tree, size = replica.state.kv.radix, case.config.page_size
    has_host = case.config.tier is not None
    if not has_host:
        replica.log_frees(4 * case.config.size)
    ended: dict[int, Handle] = {}  # the node that an operation ended on
    for row, op in enumerate(case.ops):
        kind = op[0]
        entry: dict[str, Any] = {"s": row}
        if kind == "m":
            replica.operate(MATCH, row)
            entry["hit"], entry["ix"] = tree.num_found, checksum(TreeView(tree).path(tree.node))
            ended[row] = Handle.of(tree, tree.node)
            if has_host:
                entry["hh"] = tree.num_walked - tree.num_found
        elif kind == "b":
            replica.operate(MATCH, row)
            entry["hit"], entry["hh"] = tree.num_found, tree.num_walked - tree.num_found
            place = tree.node
            if entry["hh"]:
                loads = replica.operate(LOAD, tree.best) > 0
                entry["ok"] = int(loads)
                place = tree.best if loads else place
            ended[row] = Handle.of(tree, place)
        elif kind in ("i", "I"):
            if replica.operate(INSERT if kind == "i" else INSERT_ALL, row):
                entry["oom"] = 1
            else:
                entry["p"] = tree.num_found
                ended[row] = Handle.of(tree, tree.node)
        elif kind in ("l", "u") and (op[1] not in ended or not ended[op[1]].is_alive(tree)):
            entry["err"] = 1
        elif kind == "l":
            replica.operate(LOCK, ended[op[1]].place)
            ended[row] = ended[op[1]]
        elif kind == "u":
            replica.operate(UNLOCK, ended.pop(op[1]).place)
        else:
            entry["n"] = replica.operate(EVICT, op[1])
        if has_host:
            replica.operate(SEE_COPIES, 0)
        pages = tree.pages
        log = [pages.log[k] for k in range(pages.num_logged)]
        pages.num_logged = 0
        if log:
            entry["fr"] = [
                [count * size, page * size] for count, page in zip(log[::2], log[1::2], strict=True)
            ]
        entry["av"], entry["ev"] = pages.num_unused_slots, tree.num_evictable
        entry["pr"], entry["fq"] = tree.num_protected, checksum(free_pages(pages))
        entry["th"], entry["tu"] = tree_rows(TreeView(tree))
        if has_host:
            del entry["tu"]
            entry["ha"], entry["hq"] = host_slots(tree)
        yield entry
