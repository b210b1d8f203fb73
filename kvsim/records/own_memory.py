"""The record of memory that a user's rules allocate."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.part import Part
from kvsim.records.record import Record


@dataclass(slots=True)
class OwnMemory(Record):
    """Blocks that a user's rules allocate, and sums over requests, in slots of one token."""

    part: Part = field(default_factory=Part)
    block_size: int = 1
    num_slots: int = 0
    slot_bytes: int = 0
    num_spared: int = 0  # slots that admissions leave free while others run
    rooms: list[int] = field(default_factory=list)  # of each request, by its `own_blocks`
    num_allocated: int = 0  # their sum
    num_last: int = 0  # of these, what live requests will have used by their end
    is_overdrawn: bool = False  # the rules gave out more than there is
    num_quiet_steps: int = 0  # of a run under way: until then no request needs more room
