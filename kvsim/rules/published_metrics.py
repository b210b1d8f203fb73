"""The load of a replica: read directly at any time, or published as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.rules.recorder import num_waiting
from kvsim.rules.usage import kv_usage

if TYPE_CHECKING:
    from kvsim.records.engine import Replica


def record_load(state: Replica) -> None:
    state.scraped_waiting = num_waiting(state)
    state.scraped_usage = kv_usage(state.kv)


def publish_metrics(state: Replica) -> None:
    """Publish the current load as metrics, as vLLM does after each step's output.

    A request that arrives during a step therefore shows in the metrics only after the next step.
    """
    state.published_waiting = num_waiting(state)
    state.published_running = state.num_running
    state.published_usage = kv_usage(state.kv)
