"""SGLang's abort: a waiting request ends at once, a running one with its next token.

A request that is being computed in chunks ends with the next pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.held import count_internal, reuse_record
from kvsim.engines.sglang.rules.waiting import remove_from_waiting
from kvsim.records.record import NONE
from kvsim.records.request import FINISHED
from kvsim.rules.abort import ABORTED, end_request

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def abort_sglang(state: Replica, row: int) -> bool:
    """Abort the request of a trace row; False if it is not (or no longer) on this replica."""
    for k in range(state.num_requests):
        request, mine = state.requests[k], state.engines.sglang.progress[k]
        if request.request_id == row and request.status != FINISHED:
            if mine.row == NONE:
                remove_from_waiting(state, k)
                request.finish_time = state.clock
                end_request(state, k, ABORTED)
                reuse_record(state, k)
            elif k == state.engines.sglang.chunked:
                mine.is_aborted = True
            else:
                mine.is_aborted = True
                request.end = min(request.end, request.num_tokens + 1)
                state.engines.sglang.may_finish = True
                count_internal(state.kv.radix, request, mine)
            return True
    return False
