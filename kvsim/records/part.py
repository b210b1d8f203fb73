"""Records of a user's rules: their addresses, and the memory that they allocate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvsim.records.record import NONE, Record


@dataclass(slots=True)
class Part(Record):
    """A user's rules, called by address; a part in plain Python has no addresses."""

    address: int = 0  # address of the state that the rules declare
    calls: list[int] = field(default_factory=list)  # machine code by operation, 0 for none
    python: Any = None  # the same rules as Python
    wrong: int = NONE  # first operation that returned an invalid value; no call follows it
    returned: float = 0.0  # that value


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
