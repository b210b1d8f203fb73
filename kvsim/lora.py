"""LoRA adapters: the largest number of different adapters in a batch, and their largest rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory

Count = Annotated[int, Field(ge=1)]

#: vLLM's flags for adapters.
LORA_FLAGS = ("enable_lora", "max_loras", "max_lora_rank")


@dataclass(frozen=True)
class LoRAConfig:
    """Limits of adapters; names and defaults are vLLM's."""

    max_loras: Count = 1
    max_lora_rank: Count = 16

    def init_state(self, state: Replica, memory: Memory) -> None:
        """Set the limit in an empty state, and allocate the list of a batch's adapters."""
        state.limits.has_loras, state.limits.max_loras = True, self.max_loras
        state.loras = memory.ints(self.max_loras)
