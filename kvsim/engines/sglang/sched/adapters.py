"""Settings of SGLang's buffers for LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvsim.records.record import NONE

if TYPE_CHECKING:
    from kvsim.engines.sglang.records.adapters import Adapters
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory


@dataclass(frozen=True)
class AdapterSettings:
    """Buffers for adapters, the base model's included; names are SGLang's.

    A load takes ``load_time`` seconds or, with ``by_passes``, passes of the loop. It holds up the
    step that needs it unless loads overlap. Adapters in ``pinned`` stay loaded.
    """

    max_loras_per_batch: int
    lora_eviction_policy: Literal["lru", "fifo"] = "lru"
    enable_lora_overlap_loading: bool = False
    load_time: float = 0.0
    by_passes: bool = False
    pinned: tuple[int, ...] = ()
    lora_drain_wait_threshold: float = 0.0

    def init_state(self, state: Replica, memory: Memory) -> None:
        """Make the buffers, all empty except the base model's."""
        adapters: Adapters = state.engines.sglang.adapters
        most = adapters.most = self.max_loras_per_batch
        adapters.is_on = state.limits.has_loras = True
        adapters.is_fifo = self.lora_eviction_policy == "fifo"
        adapters.overlaps = self.enable_lora_overlap_loading
        adapters.by_passes, adapters.load_time = self.by_passes, self.load_time
        adapters.pinned, adapters.num_pinned = memory.list_of(self.pinned), len(self.pinned)
        adapters.buffers = memory.list_of([0] + [NONE] * (most - 1))
        adapters.order = memory.list_of([0] + [NONE] * (2 * most))
        adapters.num_ordered = 1
        adapters.drain_wait = self.lora_drain_wait_threshold
        for name in ("batch", "wanted", "loading", "loaded", "draining", "drains_for"):
            setattr(adapters, name, memory.ints(2 * most + 1))
        adapters.ready = memory.floats(2 * most + 1)
