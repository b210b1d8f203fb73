"""A router's decisions in one compiled loop, for runs without events between two arrivals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from kvsim.engine.replica import STEPS_PER_CALL
from kvsim.fleet.routers.dynamo import Dynamo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.engine.replica import Replica
    from kvsim.engine.replica_set import ReplicaSet
    from kvsim.fleet.gateways import Gateways
    from kvsim.trace import Trace

#: Decisions after which the loop returns, so that progress shows and Ctrl-C works.
DECISIONS_PER_CALL = 1024
#: Initial room for prompts per slot.
FIRST_ROOM = 64
#: Most bits of a row number in the table of sent prompts: 8 MB.
MOST_SENT = 20


def can_decide(gateways: Gateways, replicas: Sequence[Replica], trace: Trace) -> bool:
    """Return True if the loop supports a router, its inputs, and all replicas."""
    router, reader, _ = gateways.alone()
    if type(router) is not Dynamo or not router.is_formula or not trace.has_segments:
        return False
    if router.facts.decodes_only:
        return False
    from kvsim.fleet.prefix_index.live_reader import LiveReader

    looks_up = isinstance(reader, LiveReader) and reader.names_whole_blocks
    return looks_up and all(one.entry_address for one in replicas)


def decide(
    gateways: Gateways,
    replicas: Sequence[Replica],
    rack: ReplicaSet,
    rows: NDArray[np.int64],
    planned: NDArray[np.float64],
    outputs: NDArray[np.int64],
) -> None:
    """Route requests, each at its time, and advance the replicas to these times. Mutates.

    Parameters
    ----------
    gateways : the gateways that decide
    replicas : by slot
    rack : the set of these replicas
    rows : the requests in order
    planned : their arrival times
    outputs : by request, the content of its output
    """
    from kvsim.compiled.cache import load_routing_loop

    code, (router, reader, lifecycle_events) = load_routing_loop(), gateways.alone()
    places, number = len(replicas), gateways.num_requests
    rooms = np.array([one.room for one in replicas], np.int64)
    fleet = (*rack.columns(), rooms, np.full(places, math.nan))
    there, counts = np.zeros((places, FIRST_ROOM), np.int32), np.zeros(places, np.int64)
    amounts = np.zeros(places), np.zeros(places), np.zeros(number, np.int64), np.zeros(number, bool)
    prompts, weights = gateways.prompts(), (reader.entry_tokens, *router.weights)
    sent = np.zeros(1 << min(max(number, 2).bit_length(), MOST_SENT), np.int64)
    cursor, outcome = np.zeros(3, np.int64), code.LATER
    while outcome != code.DONE:
        outcome = code.decide(
            *(
                fleet,
                lifecycle_events.columns(),
                (*amounts, there, counts),
                prompts,
                (*reader.columns(), sent),
            ),
            *((rows, planned, outputs), gateways.decisions.columns(), weights),
            *(router.facts.rng, cursor, STEPS_PER_CALL, DECISIONS_PER_CALL),
        )
        at, first, place = cursor.tolist()
        if outcome == code.ADVANCE_ONE:
            rack.bring_one(first, float(planned[at]))
        elif outcome == code.SUBMIT:
            replicas[place].submit(rows[at - 1 : at], planned[at - 1 : at])
            rooms[place] = replicas[place].room
            rack.touch(place)
        elif outcome == code.MORE_ROOM:
            there = np.concatenate((there, np.zeros_like(there)), axis=1)
        rack.tell_ended()
    gateways.decisions.note_all(rows, router)
