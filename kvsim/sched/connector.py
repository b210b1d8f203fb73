"""What a scheduler is told of its KV connector: vLLM's KVTransferConfig."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING, Literal

from kvsim.records.connector import FAKE, OFFLOADING
from kvsim.sched.offloading import OffloadingConfig, lay_out_offloading

if TYPE_CHECKING:
    from kvsim.kv.manager import KVCacheManager
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory

Role = Literal["kv_producer", "kv_consumer", "kv_both"]
FailurePolicy = Literal["recompute", "fail"]


#: Lists of a connector with a number per request of the trace.
BY_ROW = (
    *("offered", "is_sync", "num_unknown", "keeps", "received", "sent", "bad_requests"),
    *("is_held", "place", "load", "is_kept", "skips", "loads", "failed"),
    "prefills",
    *("begun", "begun_tokens"),
)


@dataclass(frozen=True)
class ConnectorConfig:
    """A connector; names and defaults are vLLM's.

    Parameters
    ----------
    kind : one of :class:`kvsim.records.connector.ConnectorKind`, ``FAKE`` or ``OFFLOADING``
    kv_role : makes KV for others, takes it from others, or both
    kv_load_failure_policy : what becomes of a request whose KV could not be loaded
    kv_recompute_threshold : compute fewer tokens than that rather than load them
    offloading : the host cache, where the kind is ``OFFLOADING``
    """

    kind: int = FAKE
    kv_role: Role = "kv_both"
    kv_load_failure_policy: FailurePolicy = "fail"
    kv_recompute_threshold: int = 0
    offloading: OffloadingConfig | None = None

    @property
    def is_producer(self) -> bool:
        """Whether others read its KV."""
        return self.kv_role != "kv_consumer"

    @property
    def is_consumer(self) -> bool:
        """Whether it takes KV from others."""
        return self.kv_role != "kv_producer"


def num_transfers(kv: KVCacheManager, num_rows: int) -> int:
    """Most requests that can hold blocks without running: each has one of its own."""
    return min(kv.num_gpu_blocks, num_rows)


def lay_out_connector(
    state: Replica, memory: Memory, config: ConnectorConfig, depth: int, num_rows: int
) -> None:
    """Lay out a connector for the requests of a trace."""
    connector, kv = state.connector, state.kv
    connector.kind = config.kind
    connector.drops_stale = config.is_producer and config.kind != OFFLOADING
    connector.has_fence = config.is_consumer and depth > 1
    connector.recomputes = config.kv_load_failure_policy == "recompute"
    connector.block_size = lcm(*(kv.groups[g].block_size for g in range(kv.num_groups)))
    connector.threshold = config.kv_recompute_threshold
    connector.begun_times = memory.floats(num_rows)
    for name in BY_ROW:
        setattr(connector, name, memory.ints(num_rows))
    for name in ("fenced", "fences", "num_copies"):  # of steps under way, each once, copies
        setattr(connector, name, memory.ints(kv.num_holdings + depth + 1))
    num_blocks = kv.pool.num_usable + 1
    if connector.has_fence and kv.has_states:  # every copy is a block of its own
        connector.copies.blocks = memory.shorts(2 * num_blocks)
        connector.copy_groups = memory.ints(num_blocks)
    connector.bad_blocks, connector.is_marked = memory.ints(num_blocks), memory.ints(num_blocks)
    if config.offloading is not None:
        lay_out_offloading(state.offloading, memory, config.offloading, kv, num_rows)
    kv.pool.tracks_kept, kv.pool.keepers = True, memory.ints(num_blocks)
