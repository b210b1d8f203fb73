"""What a replica tells of its load: to who may ask at any time, and as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.recorder import num_waiting
from kvsim.rules.usage import kv_usage

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def tell_load(state: Replica) -> None:
    """Note what a replica has in hand now."""
    state.seen_waiting = num_waiting(state)
    state.seen_usage = kv_usage(state.kv)


def tell_metrics(state: Replica) -> None:
    """Note what the metrics say from now on: vLLM makes them behind each step's output.

    So who arrives during a step is in no metric before the end of the next one.
    """
    state.told_waiting = num_waiting(state)
    state.told_running = state.num_running
    state.told_usage = kv_usage(state.kv)
