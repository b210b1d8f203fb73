"""Records of SGLang's buffers for LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record


@dataclass(slots=True)
class Adapters(Record):
    """Adapters by buffer, and those of the batch that is built; 0 is the base model.

    Adapters in buffers stand in ``order``, the next to be evicted first.
    """

    is_on: bool = False
    most: int = 0  # max_loras_per_batch, the base model included
    is_fifo: bool = False
    overlaps: bool = False  # loads do not hold up the step (enable_lora_overlap_loading)
    by_passes: bool = False  # a load takes a number of passes, as in recorded cases
    load_time: float = 0.0  # s, or passes
    pinned: list[int] = field(default_factory=list)  # these stay
    num_pinned: int = 0
    buffers: list[int] = field(default_factory=list)  # NONE if empty
    order: list[int] = field(default_factory=list)
    num_ordered: int = 0
    batch: list[int] = field(default_factory=list)
    num_batch: int = 0
    wanted: list[int] = field(default_factory=list)  # sorted: those that must be in a buffer
    num_wanted: int = 0
    loading: list[int] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)  # beside these: when they are loaded
    num_loading: int = 0
    loaded: list[int] = field(default_factory=list)  # buffers filled in the pass under way
    num_loaded: int = 0
    num_passes: int = 0
    drain_wait: float = 0.0  # after which an adapter has another one drain for it; 0: never
    draining: list[int] = field(default_factory=list)
    drains_for: list[int] = field(default_factory=list)  # beside these: the ones that wait
    num_draining: int = 0
