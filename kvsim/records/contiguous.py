"""Records of contiguous memory: extents of a linear memory of slots, and the holes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.records.record import Record


class Placement(IntEnum):
    """The rule that places an extent; see :mod:`kvsim.kv.address_space`."""

    BUDDY = 0
    FIRST_FIT = 1
    BEST_FIT = 2


class Reserve(IntEnum):
    """The rule for the number of output slots that a request reserves; PYTHON: a user's rule."""

    MAX = 0
    POW2 = 1
    ORACLE = 2
    PYTHON = 9


BUDDY, FIRST_FIT, BEST_FIT = (int(placement) for placement in Placement)
RESERVE_MAX, RESERVE_POW2, RESERVE_ORACLE, RESERVE_PYTHON = (int(reserve) for reserve in Reserve)


@dataclass(slots=True)
class Hole(Record):
    """Free slots between two extents."""

    start: int = 0
    size: int = 0


@dataclass(slots=True)
class HolesOfSize(Record):
    """The holes of one size (a power of two) in buddy memory, by start; the lowest is last."""

    starts: list[int] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class AddressSpace(Record):
    """The free slots of a linear memory."""

    placement: int = BUDDY
    by_order: list[HolesOfSize] = field(default_factory=list)  # under BUDDY, by log2 of the size
    num_orders: int = 0
    holes: list[Hole] = field(default_factory=list)  # other placements: by address, not adjacent
    num_holes: int = 0


@dataclass(slots=True)
class Allocations(Record):
    """The extents of a request: one per sequence, all of ``size`` slots.

    In each extent, ``asked`` slots were requested, and ``last`` slots will have been used when the
    request ends.
    """

    starts: list[int] = field(default_factory=list)
    size: int = 0
    asked: int = 0
    last: int = 0


@dataclass(slots=True)
class Contiguous(Record):
    """Contiguous KV memory, and sums over all extents."""

    space: AddressSpace = field(default_factory=AddressSpace)
    reserve: int = RESERVE_MAX
    num_slots: int = 0
    slot_bytes: int = 0
    has_samples: bool = False  # some request has several sequences
    window: int = 0  # tokens of a rolling buffer, 0 for none
    pieces: list[Allocations] = field(default_factory=list)  # by index of `KV.request_blocks`
    num_size: int = 0  # slots of all extents
    num_asked: int = 0  # slots among these that were requested
    num_last: int = 0  # slots that live requests will have used by their end
