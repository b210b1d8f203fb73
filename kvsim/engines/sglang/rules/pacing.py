"""Intervals of the loop: passes that receive no requests, and decodes between prefills."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engines.sglang.records.scheduler import DECODE, NO_BATCH

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.scheduler import Sglang

#: Number of passes for which a prefill counts in the interval between receptions of requests.
WEIGHT_OF_PREFILL = 1000


def count_pass(scheduler: Sglang) -> None:
    """Count a pass; only some of the passes after a decode receive requests and aborts."""
    decodes = scheduler.last_mode in (DECODE, NO_BATCH)
    scheduler.num_deaf += 1 if decodes else WEIGHT_OF_PREFILL
    scheduler.is_deaf = scheduler.num_deaf < scheduler.recv_interval
    if not scheduler.is_deaf:
        scheduler.num_deaf = 0


def decodes_first(scheduler: Sglang) -> bool:
    """Return True if this pass must only decode, since a prefill was recent; count the pass."""
    if scheduler.num_decodes_due == 0:
        return False
    if scheduler.num_running < scheduler.decode_interval_min:
        scheduler.num_decodes_due = 0
        return False
    scheduler.num_decodes_due -= 1
    return True
