"""What a replica tells of its load: to who may ask at any time, and as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.recorder import num_waiting
from kvsim.rules.usage import kv_usage

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def record_load(state: Replica) -> None:
    """Note what a replica has in hand now."""
    state.scraped_waiting = num_waiting(state)
    state.scraped_usage = kv_usage(state.kv)


def publish_metrics(state: Replica) -> None:
    """Note what the metrics say from now on: vLLM makes them behind each step's output.

    So who arrives during a step is in no metric before the end of the next one.
    """
    state.published_waiting = num_waiting(state)
    state.published_running = state.num_running
    state.published_usage = kv_usage(state.kv)
