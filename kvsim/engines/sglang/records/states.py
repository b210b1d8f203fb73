"""Records of SGLang's pool of states, for models with Mamba or linear-attention layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record, Short


@dataclass(slots=True)
class Holding(Record):
    """The state slots of a request, 0 for none: its current state, and two for earlier states.

    A step writes into place ``next``; the last written state is in place ``last``.
    """

    own: Short = 0
    first: Short = 0  # slot of place 0
    second: Short = 0  # slot of place 1
    next: Short = 0
    last: Short = 0
    depth: Short = 0  # tokens of the state in ``last``; 0 for none
    depth_before: Short = 0  # ``depth`` before the last verification
    copied: Short = 0  # the slot in the tree that its own was copied from
    tracked: Short = 0  # depth that its last prefill wrote
    is_hit: bool = False  # its newest step is a decode that writes a state
    hit_place: Short = 0  # where the last such step writes it
    is_given_back: bool = False  # the slot for it is freed at once, since the batch is mixed


@dataclass(slots=True)
class States(Record):
    """A ring of the free state slots, numbered from 1, and settings of the caching strategy."""

    num_slots: int = 0
    free: list[int] = field(default_factory=list)
    first: int = 0  # index of the next slot to allocate
    num_left: int = 0
    group: list[int] = field(default_factory=list)  # reserved for this pass
    group_at: int = 0
    num_grouped: int = 0
    most_per_path: int = -1  # states from the root to a node; -1 for no limit
    num_places: int = 0  # places per request for earlier states
    is_lazy: bool = False  # the second place is filled when a decode writes into it
    chunk: int = 64  # tokens after which the kernels have a state
    step: int = 64  # the same in whole pages
    interval: int = 256  # tokens between the states that a decode writes
