"""vLLM's prefill_schedule_interval: only every N-th executed step may schedule prefill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kvsim.features.feature import SCHEDULER_FEATURES, Feature
from kvsim.rules.waiting_for_kv import num_queued

if TYPE_CHECKING:
    from kvsim.records.engine import Batch, Replica


@SCHEDULER_FEATURES.register("prefill-interval")
@dataclass(slots=True)
class PrefillInterval(Feature):
    """While a request decodes, prefill waits until the last step with prefill is N steps ago."""

    options: ClassVar = {
        "prefill_schedule_interval": "while requests decode, prefill in every N-th step only; 0: "
        "in all steps"
    }
    prefill_schedule_interval: int = 0
    num_executed: int = 0  # steps with at least one token
    last_prefill: int = 0  # number of the last such step with prefill; 0 for none
    is_prefill_full: bool = False  # requests still waited after the last step that could prefill
    is_held: bool = False  # the current step has no prefill

    def holds_prefill(self, state: Replica) -> bool:
        self.is_held = False
        if self.last_prefill == 0 or self.is_prefill_full:
            return False
        if self.num_executed + 1 - self.last_prefill >= self.prefill_schedule_interval:
            return False
        for place in range(state.num_running):
            if state.requests[state.running[place]].is_chunk == 0:
                self.is_held = True
        return self.is_held

    def end_step(self, state: Replica, batch: Batch) -> None:
        if state.num_preempted == 0 and not self.is_held:
            self.is_prefill_full = num_queued(state) > state.num_deferred
        if batch.size > 0:
            self.num_executed += 1
            if state.carries_prefill:
                self.last_prefill = self.num_executed

    def sees_decodes(self, state: Replica) -> bool:
        return self.prefill_schedule_interval > 1
