"""Records of fair queues: the service and the waiting requests of each tenant."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.queue import Queue
from kvsim.records.record import NONE, Record


class Fairness(IntEnum):
    """The rule that shares service between tenants."""

    NOBODY_COUNTS = 0
    VTC = 1  # virtual token counters
    DLPM = 2  # deficits, longest prefix match first


NOBODY_COUNTS, VTC, DLPM = (int(kind) for kind in Fairness)

#: Service of one token of a prompt and of one of an output: input_price and output_price of
#: slora/server/router/vtc_req_queue.py in VTC's artifact (14c19b7).
INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2


@dataclass(slots=True)
class Tenant(Record):
    """One tenant at one replica."""

    counter: int = 0  # VTC: service, lifted when it comes back
    deficit: int = 0  # DLPM: tokens that it may still be served
    queue: Queue = field(default_factory=Queue)  # VTC: its waiting requests
    num_running: int = 0  # as counted for a run of steps
    price: int = 1  # VTC: of a unit of service; in inverse proportion to the tenant's weight


@dataclass(slots=True)
class Shares(Record):
    """The state of a fair queue."""

    tenants: list[Tenant] = field(default_factory=list)
    num_tenants: int = 0
    last_active: int = NONE  # the tenant that left the queue last
    refused: int = NONE  # the request that found no room last
    quantum: int = 0  # DLPM: tokens by which an exhausted tenant is refilled
    matched: list[int] = field(default_factory=list)  # DLPM: tokens hit, by place of the request
