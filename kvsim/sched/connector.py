"""The settings of a KV connector, vLLM's KVTransferConfig, and the memory that it needs."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, Literal

import numpy as np

from kvsim.records.connector import FAKE, OFFLOADING, Connector
from kvsim.records.memory import assign, head
from kvsim.sched.offloading import init_offloading

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory
    from kvsim.sched.scheduler import SchedulerConfig

Role = Literal["kv_producer", "kv_consumer", "kv_both"]
FailurePolicy = Literal["recompute", "fail"]


#: Lists of a connector with one number per request of the trace.
BY_ROW = (
    *("offered", "is_sync", "num_unknown", "keeps", "received", "sent", "bad_requests"),
    *("is_waiting_for_kv", "place", "load", "is_pinned", "skips", "loads", "failed"),
    "prefills",
    *("begun", "begun_tokens"),
)


def make_connector(
    kind: int = FAKE,
    role: Role = "kv_both",
    failure_policy: FailurePolicy = "fail",
    threshold: int = 0,
) -> Connector:
    """Return the settings of a connector from vLLM's ``kv_role`` and ``kv_load_failure_policy``.

    Parameters
    ----------
    kind : one of :class:`kvsim.records.connector.ConnectorKind`
    threshold : fewest external tokens that a request loads; fewer are computed
    """
    return Connector(
        kind=kind,
        drops_stale=role != "kv_consumer" and kind != OFFLOADING,
        has_fence=role != "kv_producer",
        recomputes=failure_policy == "recompute",
        threshold=threshold,
    )


def num_transfers(kv: KVCacheManager, num_rows: int) -> int:
    """Return the largest number of requests that hold blocks without running."""
    return min(kv.num_gpu_blocks, num_rows)


def init_connector(
    state: Replica, memory: Memory, config: SchedulerConfig, depth: int, num_rows: int
) -> None:
    """Lay out a connector, if there is one, for the requests of a trace."""
    connector, kv = state.connector, state.kv
    if config.kv_transfer is None:
        return
    assign(connector, config.kv_transfer)
    connector.has_fence = config.kv_transfer.has_fence and depth > 1
    connector.block_size = lcm(*(kv.groups[g].block_size for g in range(kv.num_groups)))
    connector.begun_times = memory.floats(num_rows)
    for name in BY_ROW:
        setattr(connector, name, memory.ints(num_rows))
    for name in ("fenced", "fences", "num_copies"):  # per request or step in progress
        setattr(connector, name, memory.ints(kv.num_request_blocks + depth + 1))
    num_blocks = kv.pool.num_usable + 1
    if connector.has_fence and kv.has_states:  # every copy has its own block
        connector.copies.blocks = memory.shorts(2 * num_blocks)
        connector.copy_groups = memory.ints(num_blocks)
    connector.bad_blocks, connector.is_marked = memory.ints(num_blocks), memory.ints(num_blocks)
    if config.offloading is not None:
        init_offloading(state.offloading, memory, config.offloading, kv, num_rows)
    kv.pool.tracks_pins, kv.pool.pin_counts = True, memory.ints(num_blocks)


def more_rows(connector: Connector, memory: Memory, before: int, num_rows: int) -> None:
    """Extend a connector's lists by row from ``before`` to ``num_rows`` requests. Mutates."""
    for name in (*BY_ROW, "begun_times"):
        kind = np.float64 if name == "begun_times" else np.int64
        longer = np.zeros(num_rows, kind)
        longer[:before] = head(getattr(connector, name), before)
        memory.replace(connector, **{name: memory.list_of(longer)})
