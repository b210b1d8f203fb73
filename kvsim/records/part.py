"""The record of a user's rules: the addresses of their state and of their machine code."""

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
