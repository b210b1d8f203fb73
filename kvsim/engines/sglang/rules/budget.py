"""The budget of a prefill pass: tokens promised to running requests, and tokens left for others.

A running request is expected to use a share, ``ratio``, of the tokens that it may still generate; a
request admitted in the pass is promised all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.scheduler import CONTINUE, NO_TOKEN, OTHER
from kvsim.engines.sglang.rules.causes import num_available, num_windows_available
from kvsim.engines.sglang.rules.tree.pages import ceil_page

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: Most output tokens of a request that admission counts (SGLang's clip).
MOST_NEW_TOKENS = 4096


def open_budget(state: Replica) -> None:
    """Start the budget of a pass with the expected need of running requests."""
    scheduler = state.engines.sglang
    scheduler.num_mixed = scheduler.num_running if scheduler.mixes else 0
    scheduler.rem_input = scheduler.max_prefill_tokens - scheduler.num_mixed
    scheduler.rem_chunk = scheduler.chunk_size - scheduler.num_mixed
    scheduler.current = scheduler.num_mixed
    scheduler.budget = float(scheduler.num_mixed)
    for place in range(scheduler.num_running):
        scheduler.budget += promised(state, scheduler.running[place])
    scheduler.window_budget = 0
    scheduler.num_admitted = 0
    scheduler.num_states = -1


def promised(state: Replica, k: int) -> float:
    """Return the tokens that a running request is still expected to generate."""
    mine = state.engines.sglang.progress[k]
    left = min(mine.max_new - state.requests[k].num_output_tokens, MOST_NEW_TOKENS)
    return left * (1.0 if mine.ignores_eos else state.engines.sglang.ratio)


def rem_total(state: Replica) -> float:
    """Return the tokens that are neither taken nor promised."""
    return num_available(state.kv.radix) - state.engines.sglang.budget


def rem_current(state: Replica) -> int:
    """Return the tokens that are free or evictable, promised ones included."""
    return num_available(state.kv.radix) - state.engines.sglang.current


def rem_window(state: Replica) -> int:
    """Return the window slots that are neither taken nor promised."""
    return num_windows_available(state.kv.radix) - state.engines.sglang.window_budget


def window_need(state: Replica, num_tokens: int, max_new: int) -> int:
    """Return the window slots that a prompt needs: a chunk beyond a window, and the last window."""
    scheduler, window = state.engines.sglang, state.kv.radix.window
    chunk = min(num_tokens, scheduler.rem_chunk) if scheduler.chunk_size > 0 else num_tokens
    return max(chunk - window, 0) + min(num_tokens + max_new, window) + scheduler.page_size


def verdict_of(state: Replica) -> int:
    """Return CONTINUE if the budget leaves room for more, else the reason why it does not."""
    scheduler = state.engines.sglang
    if rem_total(state) <= 0 or rem_current(state) <= 0:
        return NO_TOKEN
    if state.kv.radix.window > 0 and rem_window(state) <= 0:
        return NO_TOKEN
    if scheduler.rem_input <= 0 or (scheduler.chunk_size > 0 and scheduler.rem_chunk <= 0):
        return OTHER
    return CONTINUE


def charge_prefill(state: Replica, num_tokens: int, max_new: int) -> None:
    """Charge tokens of a prompt, and its promised output, to the budget."""
    scheduler, size = state.engines.sglang, state.engines.sglang.page_size
    num_tokens = ceil_page(num_tokens, size)
    if state.kv.radix.window > 0:
        scheduler.window_budget += window_need(state, num_tokens, max_new)
    scheduler.budget += num_tokens + size + max_new
    scheduler.current += num_tokens + size
    scheduler.rem_input -= num_tokens
    scheduler.rem_chunk -= num_tokens
