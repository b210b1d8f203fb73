"""The prefill delayer of one rank: it delays prefills until many requests can be admitted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.rules.causes import radix_usage

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.scheduler import Delayer
    from kvsim.records.engine import Replica


def open_delay(delayer: Delayer) -> None:
    """Start a pass. A delay continues if this pass delays a prefill, too."""
    delayer.had_waited = delayer.waits
    delayer.waits = delayer.is_asked = False


def delays_prefill(state: Replica) -> bool:
    """Return True if this pass delays prefills; it decides at its first request."""
    delayer = state.engines.sglang.delayer
    if not delayer.is_asked:
        delayer.is_asked = True
        delayer.delays = must_delay(state)
        delayer.waits = delayer.delays
    return delayer.delays


def must_delay(state: Replica) -> bool:
    """Decide if a pass delays prefills; the first delay of a run is skipped."""
    delayer = state.engines.sglang.delayer
    if delayer.low_usage > 0 and radix_usage(state.kv.radix) < delayer.low_usage:
        return False
    if not (lacks_places(state) or lacks_requests(state)):
        return False
    if not delayer.has_spared:
        delayer.has_spared = True
        return False
    if not delayer.had_waited:
        delayer.since = state.clock
    return True


def lacks_places(state: Replica) -> bool:
    """Return True if the running batch has no place for as many requests as the largest prefill."""
    scheduler = state.engines.sglang
    return scheduler.max_running - scheduler.num_running < scheduler.delayer.most_at_once


def lacks_requests(state: Replica) -> bool:
    """Return True if too few requests wait, and the delay has not reached its limit."""
    scheduler, delayer = state.engines.sglang, state.engines.sglang.delayer
    most = delayer.most_at_once
    if scheduler.prefill_max_requests > 0:
        most = scheduler.prefill_max_requests
    if state.waiting.length >= int(min(scheduler.num_running * delayer.queue_ratio, float(most))):
        return False
    return not (delayer.had_waited and state.clock - delayer.since >= delayer.most_waited)
