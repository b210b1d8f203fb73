"""Records of SGLang's pool of states, for models with Mamba or linear-attention layers."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.records.record import Record, Short


@dataclass(slots=True)
class Holding(Record):
    """The slots of a request, 0 for none: its present state, and places for states of its past.

    A step writes into the place ``next``, and the last state that was written is in ``last``.
    """

    own: Short = 0
    first: Short = 0  # slot of place 0
    second: Short = 0  # slot of place 1
    next: Short = 0
    last: Short = 0
    depth: Short = 0  # tokens of the state in ``last``; 0 for none
    copied: Short = 0  # the slot in the tree that its own was copied from
    tracked: Short = 0  # depth that its last prefill wrote
    is_hit: bool = False  # its newest step is a decode that writes a state
    hit_place: Short = 0  # where the last such step writes it
    is_given_back: bool = False  # the slot for that, as the batch is mixed


@dataclass(slots=True)
class States(Record):
    """A ring of the free state slots, numbered from 1, and settings of the caching strategy."""

    num_slots: int = 0
    free: list[int] = field(default_factory=list)
    first: int = 0  # the next one out
    num_left: int = 0
    group: list[int] = field(default_factory=list)  # taken out for the pass under way
    group_at: int = 0
    num_grouped: int = 0
    most_per_path: int = -1  # states from the root to a node; -1 for no limit
    num_places: int = 0  # of a request
    is_lazy: bool = False  # the second place is filled when a decode writes into it
    chunk: int = 64  # tokens after which the kernels have a state
    step: int = 64  # the same in whole pages
    interval: int = 256  # tokens of a decode's states
