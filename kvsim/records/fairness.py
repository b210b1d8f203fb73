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

#: Service of a prompt token and of an output token: input_price and output_price of
#: slora/server/router/vtc_req_queue.py in VTC's artifact (14c19b7).
INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2


@dataclass(slots=True)
class Tenant(Record):
    """One tenant at one replica."""

    counter: int = 0  # VTC: service received; lifted when the tenant returns from idleness
    deficit: int = 0  # DLPM: tokens of service left
    queue: Queue = field(default_factory=Queue)  # VTC: its waiting requests
    num_running: int = 0  # its running requests, as counted for a run of steps
    price: int = 1  # VTC: charge for a unit of service, inversely proportional to its weight


@dataclass(slots=True)
class Shares(Record):
    """The state of a fair queue."""

    tenants: list[Tenant] = field(default_factory=list)
    num_tenants: int = 0
    last_active: int = NONE  # the tenant that emptied its queue last
    refused: int = NONE  # the request that was refused last
    quantum: int = 0  # DLPM: tokens that a refill adds to a tenant's deficit
    matched: list[int] = field(default_factory=list)  # DLPM: cached tokens, by place of the request
