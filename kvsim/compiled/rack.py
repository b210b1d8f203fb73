"""The host's loops over the replicas of a fleet, compiled: one call for all of them.

Rules are reached by the address of their entry, so that this compiles apart from them. A replica
without one is the host's to run.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from kvsim.compiled.types import WORD, record_at
from kvsim.records.engine import DONE, Replica

_replica = record_at(Replica, "")


@intrinsic
def call_entry(typing_context: Any, entry: Any, address: Any, command: Any, argument: Any) -> Any:
    """Call the rules that lie at an address."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(WORD, [WORD] * 3).as_pointer()
        return builder.call(builder.inttoptr(args[0], kind), args[1:])

    return types.int64(*[types.int64] * 4), generate


@njit(cache=True)
def advance_due(entries, addresses, times, ended, first, target, command, most_steps):
    """Bring replicas to a time, from one on; returns who needs the host, -1 for none.

    ``times`` are their next events, ``ended`` counts the requests that end.
    """
    for place in range(first, len(times)):
        before = -math.inf
        while before < times[place] <= target and times[place] < math.inf:
            before = times[place]
            if entries[place] == 0:
                return place
            state = _replica(addresses[place])
            state.horizon = target
            state.until_finish = False
            state.num_ended = 0
            outcome = call_entry(entries[place], addresses[place], command, most_steps)
            ended[place] += state.num_ended
            if outcome != DONE:
                return place
            times[place] = state.next_event_time
    return -1
