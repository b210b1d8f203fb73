"""Records of a KV cache, whichever manager runs it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.engines.records.states import Radix
from kvsim.records.contiguous import Contiguous
from kvsim.records.own_memory import OwnMemory
from kvsim.records.paged import BlockPool, KVGroup, LookupSpec, RequestBlocks
from kvsim.records.record import Record
from kvsim.records.states import States
from kvsim.records.virtual import Virtual


class Manager(IntEnum):
    """The manager of a KV cache. PYTHON is one without rules, OWN has rules of a user's."""

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
    """KV memory at one instant, in bytes; the first five sum to the total."""

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
    """A KV cache: its settings, the blocks of each request, and the sums behind every report."""

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
    dead_bytes: int = 0  # of windows of live requests, as if none were shared
    dead_rate: int = 0  # more of them with every step of a run under way
    num_cpu_free: int = 0  # blocks of host memory for swapped requests
    usage: Usage = field(default_factory=Usage)
    dead_ends: list[float] = field(default_factory=list)  # scratch of the memory map, by block
    live_ends: list[float] = field(default_factory=list)
    last_ends: list[float] = field(default_factory=list)
    unused: list[int] = field(default_factory=list)
    moved: Moved = field(default_factory=Moved)  # since the last step
    num_copied_blocks: int = 0  # by sequences about to write into a shared one
    num_entries: int = 0  # of the tables of sequences that fork
    parents: list[int] = field(default_factory=list)  # scratch, by sequence
    column: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)  # scratch, by block
    moved_to: list[int] = field(default_factory=list)
    contiguous: Contiguous = field(default_factory=Contiguous)
    virtual: Virtual = field(default_factory=Virtual)
    radix: Radix = field(default_factory=Radix)
    own: OwnMemory = field(default_factory=OwnMemory)
    python: object = None  # a manager that is not a rule

    alignment: int = 1  # of hits, tokens
    scheduler_block_size: int = 1  # what all blocks' sizes divide; the same, unless hits end inside
    hash_block_size: int = 1
    bytes_per_block: int = 0
    max_model_len: int = 0
    watermark_blocks: int = 0
    num_lookahead_tokens: int = 0  # slots to own beyond those of the scheduled tokens
    num_hash_lookahead_tokens: int = 0  # after a block that its key covers
    num_unnamed_tokens: int = 0  # at the end of what is computed, not named yet
    drops_last_block: bool = False  # of a hit: a drafter has no state of it
    segment: int = 0  # tokens between the window ends that stay cached, 0 for none
    keeps_boundaries: bool = False  # also the window before a prompt's end stays cached
    reserve_full_isl: bool = True
    reserve_output: bool = False
    enable_prefix_caching: bool = False
    has_windows: bool = False
    names_by_group: bool = False  # each group names its blocks at a pace of its own
    has_states: bool = False  # of Mamba layers, that later requests can take up
    matches_partially: bool = False  # a hit may end inside a block
    states: States = field(default_factory=States)
    replay_window: int = 0  # tokens computed again behind a hit; 0: no group asks for it
    beam_switch: float = 0.0  # share of beams that continue another one, per step
