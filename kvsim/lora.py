"""LoRA adapters: the largest number of different adapters in a batch, and their largest rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from kvsim.records.engine import Replica
    from kvsim.records.memory import Memory

Count = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class LoRAConfig:
    """Limits of adapters; names and defaults are vLLM's."""

    max_loras: Count = 1
    max_lora_rank: Count = 16

    def init_state(self, state: Replica, memory: Memory) -> None:
        """Set the limit in an empty state, and allocate the list of a batch's adapters."""
        state.limits.has_loras, state.num_lora_slots = True, self.max_loras
        state.loras = memory.ints(self.max_loras)


class LoRAOptions(BaseModel, defer_build=True):
    """The options of adapters."""

    enable_lora: bool = Field(
        False, description="serve the LoRA adapters that the trace names in lora_id"
    )
    max_loras: Count = Field(1, description="maximum number of different adapters in a batch")
    max_lora_rank: Count = Field(16, description="maximum rank of an adapter")

    @property
    def lora(self) -> LoRAConfig | None:
        """Limits of LoRA adapters; None without ``enable_lora``."""
        return LoRAConfig(self.max_loras, self.max_lora_rank) if self.enable_lora else None


#: vLLM's flags for adapters: the switch, and those that tune it.
LORA_FLAGS = tuple(LoRAOptions.model_fields)
