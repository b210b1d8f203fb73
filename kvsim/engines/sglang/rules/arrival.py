"""Arrival of a request: the limit of its output, and its initial state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.host.storage import begin_read
from kvsim.engines.sglang.rules.tree.pages import ceil_page
from kvsim.engines.sglang.rules.waiting import enter_queue
from kvsim.records.request import FINISHED

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: Smallest max_tokens for which the length of an output that ends by EOS counts as unlimited.
NO_LIMIT = 2**24


def add_sglang(state: Replica, k: int) -> None:
    """Queue a new arrival; context length and pool size limit its output."""
    scheduler, trace = state.engines.sglang, state.trace
    request, mine = state.requests[k], state.engines.sglang.progress[k]
    mine.reset()
    row, prompt = request.request_id, request.num_prompt_tokens
    asked, stop = trace.max_tokens[row], 0
    if trace.has_stops:
        stop = trace.stop_at[row]
    elif trace.has_eos and asked < trace.asked_tokens[row] < NO_LIMIT:
        asked, stop = trace.asked_tokens[row], asked
    elif scheduler.max_new_tokens > asked:
        asked, stop = scheduler.max_new_tokens, asked
    mine.ignores_eos = scheduler.ignore_eos or (trace.has_stops and trace.ignores_eos[row] > 0)
    longest = min(scheduler.context_len - 1, scheduler.pool_size - 1) - prompt - 1
    asked = max(0, min(asked, longest))
    size = scheduler.page_size
    mine.max_new = max(0, min(asked, scheduler.pool_size - ceil_page(prompt, size) - size - 1))
    mine.most = prompt + mine.max_new
    request.max_tokens = max(mine.max_new, 1)
    if 0 < stop < request.max_tokens and not mine.ignores_eos:
        request.max_tokens = stop
    request.end = prompt + request.max_tokens
    scheduler.is_idle = False
    enter_queue(state, k)
    if state.storage.is_on and request.status != FINISHED:
        begin_read(state, k)
