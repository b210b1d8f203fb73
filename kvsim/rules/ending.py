"""How an answer ends: at a number of tokens that the scheduler knows, or by EOS.

vLLM knows max_tokens and max_model_len beforehand. A token that ends an answer by itself, EOS or a
stop token, it knows only when it processes the step's output. Asynchronous scheduling has put the
request into the next step by then: one token of budget and work more, and perhaps a block.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvsim.records.engine import STATIC
from kvsim.records.request import FINISHED
from kvsim.rules.batch import recycle

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


def note_surplus(state: Replica, batch: Batch) -> None:
    """Note since when steps that end are surplus alone: everybody has ended before."""
    if state.num_outstanding > 0:
        state.surplus_since = math.inf
    elif batch.size > 0:
        state.surplus_since = min(state.surplus_since, state.clock)


def forget_finished(state: Replica) -> None:
    """Take finished requests off the running list; their records are free again, unless retired."""
    kept = 0
    for place in range(state.num_running):
        k = state.running[place]
        if state.requests[k].status == FINISHED:
            if state.limits.scheduler != STATIC:
                recycle(state, k)
        else:
            state.running[kept] = k
            kept += 1
    state.num_running = kept
    state.tried = False
    state.is_full = False
