"""Records of a KV cache, under any manager."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from kvsim.engines.records.states import Radix
from kvsim.records.contiguous import Contiguous
from kvsim.records.paged import BlockPool, KVGroup, LookupSpec, RequestBlocks
from kvsim.records.part import OwnMemory
from kvsim.records.record import Record
from kvsim.records.states import States
from kvsim.records.virtual import Virtual


class Manager(IntEnum):
    """The manager of a KV cache. PYTHON is a class in Python, OWN a user's compiled rules."""

    PYTHON = 0
    PAGED = 1
    FORKED = 2
    CONTIGUOUS = 3
    VIRTUAL = 4
    RADIX = 5
    OWN = 6


PYTHON, PAGED, FORKED, CONTIGUOUS, VIRTUAL, RADIX, OWN = (int(manager) for manager in Manager)


@dataclass(slots=True)
class Usage(Record):
    """KV bytes at one instant. All fields but ``cached`` add up to the whole KV memory.

    ``cached`` is a part of ``unallocated``.
    """

    token_states: int = 0
    reservation: int = 0
    internal: int = 0
    external: int = 0
    unallocated: int = 0
    cached: int = 0


@dataclass(slots=True)
class Moved(Record):
    """KV bytes that a step moves between host and GPU; see :class:`kvsim.kv.manager.Transfers`."""

    fetched: int = 0
    stored: int = 0
    paged_in: int = 0
    paged_out: int = 0
    num_faults: int = 0


@dataclass(slots=True)
class KV(Record):
    """A KV cache: its settings, the blocks of each request, and sums from which usage follows."""

    manager: int = PAGED
    pool: BlockPool = field(default_factory=BlockPool)
    groups: list[KVGroup] = field(default_factory=list)
    num_groups: int = 0
    specs: list[LookupSpec] = field(default_factory=list)
    num_specs: int = 0
    request_blocks: list[RequestBlocks] = field(default_factory=list)
    free_request_blocks: list[int] = field(default_factory=list)
    num_free_request_blocks: int = 0
    num_request_blocks: int = 0
    num_held: int = 0  # requests that hold memory
    num_filled: int = 0  # tokens of live requests
    dead_bytes: int = 0  # bytes before the windows of live requests, as if no block were shared
    dead_rate: int = 0  # growth of ``dead_bytes`` per step of the current run
    num_cpu_free: int = 0  # free blocks of host memory for swapped requests
    usage: Usage = field(default_factory=Usage)
    dead_ends: list[float] = field(default_factory=list)  # scratch of the memory map, by block
    live_ends: list[float] = field(default_factory=list)
    last_ends: list[float] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)
    moved: Moved = field(default_factory=Moved)  # since the last step
    num_copied_blocks: int = 0  # shared blocks that were copied before a write
    num_entries: int = 0  # entries of the block tables of forked sequences
    parents: list[int] = field(default_factory=list)  # scratch, by sequence
    column: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # scratch, by block
    moved_to: list[int] = field(default_factory=list)
    contiguous: Contiguous = field(default_factory=Contiguous)
    virtual: Virtual = field(default_factory=Virtual)
    radix: Radix = field(default_factory=Radix)
    own: OwnMemory = field(default_factory=OwnMemory)
    python: Any = None  # a manager in Python

    alignment: int = 1  # hits are multiples of it, in tokens
    scheduler_block_size: int = 1  # tokens; a multiple of the block size of every group
    hash_block_size: int = 1
    bytes_per_block: int = 0
    max_model_len: int = 0
    watermark_blocks: int = 0
    num_lookahead_tokens: int = 0  # slots to allocate beyond the scheduled tokens
    num_hash_lookahead_tokens: int = 0  # tokens after a block that its key covers
    num_unnamed_tokens: int = 0  # last computed tokens, for which no keys are set yet
    drops_last_block: bool = False  # the last block of a hit is not reused: a drafter lacks it
    segment: int = 0  # retention interval: tokens between cached window ends, 0 for none
    keeps_boundaries: bool = False  # the window before a prompt's end stays cached, too
    reserve_full_isl: bool = True
    reserve_output: bool = False
    enable_prefix_caching: bool = False
    has_windows: bool = False
    names_by_group: bool = False  # each group sets keys up to its own token count
    has_states: bool = False  # states of Mamba layers are cached for later requests
    matches_partially: bool = False  # a hit may end inside a block
    states: States = field(default_factory=States)
    replay_window: int = 0  # last tokens of a hit that are recomputed, 0 for none
    beam_switch: float = 0.0  # share of beams that continue another beam, per step
