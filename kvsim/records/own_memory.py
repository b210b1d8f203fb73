"""The record of memory that a user's rules allocate."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.part import Part
from kvsim.records.record import Record


@dataclass(slots=True)
class OwnMemory(Record):
    """Blocks that a user's rules allocate, and sums over requests; a slot holds one token."""

    part: Part = field(default_factory=Part)
    block_size: int = 1
    num_slots: int = 0
    slot_bytes: int = 0
    num_spared: int = 0  # slots that admissions leave free while other requests run
    rooms: list[int] = field(default_factory=list)  # by `Request.own_blocks`: its slots
    num_allocated: int = 0  # their sum
    num_last: int = 0  # allocated slots that live requests will have used when they end
    is_overdrawn: bool = False  # the rules allocated more slots than there are
    num_quiet_steps: int = 0  # steps of the current run before any request needs more slots
