"""Records of SGLang's buffers for LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record


@dataclass(slots=True)
class Adapters(Record):
    """Adapters by buffer, and adapters of the batch being built; 0 is the base model.

    ``order`` lists the adapters in buffers, in the order in which they will be evicted.
    """

    is_on: bool = False
    most: int = 0  # max_loras_per_batch, the base model included
    is_fifo: bool = False
    overlaps: bool = False  # loads do not hold up the step (enable_lora_overlap_loading)
    by_passes: bool = False  # a load takes a number of passes, as in recorded cases
    load_time: float = 0.0  # s, or passes
    pinned: list[int] = field(default_factory=list)  # never evicted
    num_pinned: int = 0
    buffers: list[int] = field(default_factory=list)  # NONE if empty
    order: list[int] = field(default_factory=list)
    num_ordered: int = 0
    batch: list[int] = field(default_factory=list)
    num_batch: int = 0
    wanted: list[int] = field(default_factory=list)  # sorted: adapters that must be in a buffer
    num_wanted: int = 0
    loading: list[int] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)  # end of each load, s or passes
    num_loading: int = 0
    loaded: list[int] = field(default_factory=list)  # buffers filled in this pass
    num_loaded: int = 0
    num_passes: int = 0
    drain_wait: float = 0.0  # wait of an adapter until another one drains for it; 0: no limit
    draining: list[int] = field(default_factory=list)
    drains_for: list[int] = field(default_factory=list)  # the waiting adapter of each
    num_draining: int = 0
