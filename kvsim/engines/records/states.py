"""The records that the engines add to a replica's."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.engines.sglang.records.radix import Radix
from kvsim.engines.sglang.records.scheduler import Sglang
from kvsim.engines.sglang.records.storage import Storage
from kvsim.records.record import Record

__all__ = ["EngineStates", "Radix", "Storage"]


@dataclass(slots=True)
class EngineStates(Record):
    """State of each engine's scheduler, in addition to the common state."""

    sglang: Sglang = field(default_factory=Sglang)
