"""The number of waiting requests that have records on a replica."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.policies import SCHEDULED_IN_PYTHON
from kvsim.records.connector import NO_CONNECTOR

if TYPE_CHECKING:
    from kvsim.records.engine import Replica

#: If no rule reads the tail of the queue: waiting requests with records, besides two full batches.
LONGEST_QUEUE = 1024


def backlog_of(state: Replica) -> int:
    """Return the largest number of waiting requests that have records, 0 for no limit (D104)."""
    limits = state.limits
    by_rules = limits.scheduler != SCHEDULED_IN_PYTHON and not limits.in_python
    by_rules = by_rules and not limits.has_own_loop
    in_order = by_rules and not limits.by_priority and not limits.fairness
    looks_further = limits.has_loras or limits.has_grammars or limits.has_encoder
    looks_further = (
        looks_further or limits.max_num_queued_reqs > 0 or limits.max_num_queued_tokens > 0
    )
    if state.watched or not in_order or looks_further or state.connector.kind != NO_CONNECTOR:
        return 0
    return 2 * limits.max_num_seqs + LONGEST_QUEUE
