"""Records of a KV connector: the scheduler's view of the loads and sends of each request's KV."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.paged import BlockTable
from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record


class ConnectorKind(IntEnum):
    """The connector that the scheduler queries. FAKE offers the tokens in ``Connector.offered``.

    SESSIONS is no connector: it only adds the second queue, for requests that hold blocks while
    they wait.
    """

    NONE = 0
    FAKE = 1
    OFFLOADING = 2
    SESSIONS = 3


NO_CONNECTOR, FAKE, OFFLOADING, SESSIONS = (int(kind) for kind in ConnectorKind)


class Load(IntEnum):
    """The progress of a request's asynchronous load."""

    NONE = 0
    STARTED = 1
    RECEIVED = 2


NO_LOAD, STARTED, RECEIVED = (int(load) for load in Load)

#: Returned by a connector that cannot answer a look-up yet.
UNKNOWN = -1


@dataclass(slots=True)
class Connector(Record):
    """A connector as the scheduler sees it.

    The host is the Python code that runs the replica. It fills ``offered``, ``is_sync``,
    ``num_unknown`` and ``keeps`` before a request arrives, and the reports (``received`` to
    ``bad_requests``) before a step's output is processed. A row is the index of a request in the
    trace; a place is the index of a request on the replica.
    """

    kind: int = NO_CONNECTOR
    drops_stale: bool = False  # output that was in flight at a preemption is dropped
    has_fence: bool = False  # a request's blocks are freed only after its step in flight has ended
    recomputes: bool = False  # a failed load is recomputed; if False, its request fails
    block_size: int = 1  # tokens; a hit that is no multiple of it ends in a partial block

    offered: list[int] = field(default_factory=list)  # by row: leading tokens to load, 0 for none
    is_sync: list[int] = field(default_factory=list)  # by row: 1 if the load ends before the step
    num_unknown: list[int] = field(default_factory=list)  # by row: look-ups that return UNKNOWN
    keeps: list[int] = field(default_factory=list)  # by row: 1 if others read its KV after it ended
    threshold: int = 0  # fewer offered tokens than this are computed, not loaded

    received: list[int] = field(default_factory=list)  # rows with ended loads
    num_received: int = 0
    sent: list[int] = field(default_factory=list)  # rows with pinned blocks that have been read
    num_sent: int = 0
    bad_blocks: list[int] = field(default_factory=list)  # blocks of the pool that failed to load
    num_bad_blocks: int = 0
    bad_requests: list[int] = field(default_factory=list)  # rows of loads that failed completely
    num_bad_requests: int = 0

    waiting_for_kv: Queue = field(default_factory=Queue)  # drained before the other queue
    is_waiting_for_kv: list[int] = field(default_factory=list)  # by row
    place: list[int] = field(default_factory=list)  # by row: the place of its request
    load: list[int] = field(default_factory=list)  # by row, a `Load`
    is_pinned: list[int] = field(default_factory=list)  # by row: 1 if it ended but holds blocks
    num_pinned: int = 0
    prefills: list[int] = field(default_factory=list)  # places with prompt left to load or compute
    num_prefills: int = 0

    hit: int = 0  # cached tokens of the request being admitted, in the pool
    external: int = 0  # tokens after the hit that the connector has
    num_queried: int = 0  # tokens after the hit; 0 if the connector was not queried
    is_async: bool = False  # the external tokens arrive after the step
    loads: list[int] = field(default_factory=list)  # places of requests that start a load
    num_loads: int = 0
    begun: list[int] = field(default_factory=list)  # rows of look-ups to report to the host
    begun_tokens: list[int] = field(default_factory=list)  # tokens that they load, 0 for none
    begun_times: list[float] = field(default_factory=list)
    num_begun: int = 0

    num_steps: int = 0  # steps scheduled with at least one token
    fenced: list[int] = field(default_factory=list)  # `RequestBlocks`, oldest first; NONE: copies
    fences: list[int] = field(default_factory=list)  # the step that each entry waits for
    num_copies: list[int] = field(default_factory=list)  # block pairs of each entry of copies
    num_fenced: int = 0
    copies: BlockTable = field(default_factory=BlockTable)  # fenced pairs: copy, source, copy, ...
    copy_groups: list[int] = field(default_factory=list)  # by pair: its KV-cache group

    skips: list[int] = field(default_factory=list)  # by row: 1 if this step gives it no token
    has_skips: bool = False
    failed: list[int] = field(default_factory=list)  # places of requests to end with an error
    num_failed: int = 0
    is_marked: list[int] = field(default_factory=list)  # scratch, by block
    is_idle: bool = False  # nothing can be scheduled before the host reports
    vain_row: int = NONE  # the request that preempted itself last
    vain_tokens: int = 0  # its progress then, in tokens
    num_vain: int = 0  # times in a row that it did so without progress
