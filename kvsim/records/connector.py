"""Records of a KV connector: loads and sends of KV known to the scheduler, by request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.paged import BlockTable
from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record


class ConnectorKind(IntEnum):
    """The connector that answers the scheduler. FAKE offers what the host has set.

    SESSIONS is not a connector: only its second queue exists, for requests that wait with blocks.
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

#: The connector's answer to a look-up that it cannot answer yet.
UNKNOWN = -1


@dataclass(slots=True)
class Connector(Record):
    """A connector as the scheduler sees it.

    The host fills ``offered``, ``is_sync``, ``num_unknown`` and ``keeps`` by row before a request
    arrives, and the reports (``received`` to ``bad_requests``) before the output of a step is taken
    in; rows are those of the trace, and blocks those of the pool.
    """

    kind: int = NO_CONNECTOR
    drops_stale: bool = False  # output that was under way at a preemption is dropped
    has_fence: bool = False  # blocks of a request whose step is under way are freed after it
    recomputes: bool = False  # what could not be loaded; else its request fails
    block_size: int = 1  # hits that are not a multiple of it end in a partial block

    offered: list[int] = field(default_factory=list)  # leading tokens there are, 0 for none
    is_sync: list[int] = field(default_factory=list)  # they are there when the step runs
    num_unknown: list[int] = field(default_factory=list)  # look-ups until the answer is known
    keeps: list[int] = field(default_factory=list)  # its blocks are read by somebody at its end
    threshold: int = 0  # fewer tokens than that are computed rather than loaded

    received: list[int] = field(default_factory=list)  # rows whose loads have ended
    num_received: int = 0
    sent: list[int] = field(default_factory=list)  # rows whose kept blocks have been read
    num_sent: int = 0
    bad_blocks: list[int] = field(default_factory=list)  # that could not be loaded
    num_bad_blocks: int = 0
    bad_requests: list[int] = field(default_factory=list)  # rows of which nothing could
    num_bad_requests: int = 0

    waiting_for_kv: Queue = field(
        default_factory=Queue
    )  # drained first: who has blocks, or waits for them
    is_waiting_for_kv: list[int] = field(default_factory=list)  # by row
    place: list[int] = field(default_factory=list)  # of its request, by row
    load: list[int] = field(default_factory=list)  # by row, a `Load`
    is_pinned: list[int] = field(default_factory=list)  # by row: ended, and holds blocks
    num_pinned: int = 0
    prefills: list[int] = field(default_factory=list)  # places of prompts that load or are computed
    num_prefills: int = 0

    hit: int = 0  # of the request being admitted: tokens in the pool
    external: int = 0  # tokens behind them that the connector has
    num_queried: int = 0  # tokens behind them; 0 if it was not asked
    is_async: bool = False  # and that come later
    loads: list[int] = field(default_factory=list)  # places of who loads from this step on
    num_loads: int = 0
    begun: list[int] = field(default_factory=list)  # rows whose look-ups the host has not heard of
    begun_tokens: list[int] = field(default_factory=list)  # that they load, 0 for none
    begun_times: list[float] = field(default_factory=list)
    num_begun: int = 0

    num_steps: int = 0  # scheduled, with at least one token
    fenced: list[int] = field(default_factory=list)  # holdings, oldest first; NONE: copies
    fences: list[int] = field(default_factory=list)  # the steps that they wait for
    num_copies: list[int] = field(default_factory=list)  # pairs, where copies are fenced
    num_fenced: int = 0
    copies: BlockTable = field(default_factory=BlockTable)  # behind fences: copy, source, copy, ...
    copy_groups: list[int] = field(default_factory=list)  # by pair

    skips: list[int] = field(default_factory=list)  # by row: its output of this step is void
    has_skips: bool = False
    failed: list[int] = field(default_factory=list)  # places of requests that end with an error
    num_failed: int = 0
    is_marked: list[int] = field(default_factory=list)  # scratch, by block
    is_idle: bool = False  # nothing can go on before the host reports
    vain_row: int = NONE  # who has preempted itself, with how many tokens, and how often
    vain_tokens: int = 0
    num_vain: int = 0
