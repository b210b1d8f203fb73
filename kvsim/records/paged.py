"""Records of paged memory: blocks, block tables, the pool, and groups of layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Annotated

from kvsim.records.contents import Contents, HostTier
from kvsim.records.encoder import Item
from kvsim.records.events import EventLog
from kvsim.records.eviction import LRU, Note, Ranking
from kvsim.records.part import Part
from kvsim.records.queue import ArrayQueue, Neighbours, Queue
from kvsim.records.record import NONE, Record, Short, Tiny

NULL_BLOCK = 0  # a placeholder that is never handed out


class Attention(IntEnum):
    """The attention of a group of layers: the tokens that a token sees."""

    FULL = 0
    SLIDING = 1
    CHUNKED = 2
    RSWA = 3  # the prompt, and a window of what comes after it
    RING = 4  # a compressor's state: one block per request
    MAMBA = 5  # a state, the newest one only
    MAMBA_ALIGN = 6  # a state, and those at ends of blocks that later requests can take up


FULL, SLIDING, CHUNKED, RSWA, RING, MAMBA, MAMBA_ALIGN = (int(kind) for kind in Attention)


@dataclass(slots=True)
class Block(Record):
    """One block of the pool, kept small because random accesses wait for memory."""

    ref_cnt: Short = 0
    chain: Short = NONE  # next content in the bucket
    copy: Short = NONE  # next block of this content
    slot: Short = 0  # in ``line``, while it waits there
    hashed: Annotated[bool, 8] = False
    group: Tiny = 0
    key: int = 0


@dataclass(slots=True)
class BlockPool(Record):
    """Blocks with reference counts, a free queue, and a hash map from content to blocks."""

    blocks: list[Block] = field(default_factory=list)
    places: list[Neighbours] = field(default_factory=list)  # in ``cached``, by block; of cards
    line: ArrayQueue = field(
        default_factory=ArrayQueue
    )  # LRU: free ones whose content can still be hit
    num_usable: int = 0
    unhashed: list[int] = field(default_factory=list)  # a stack: the next one out is last
    num_unhashed: int = 0
    num_cached: int = 0  # free blocks whose content can still be hit
    policy: int = LRU
    cached: Queue = field(default_factory=Queue)  # SIEVE: all that carry a key
    notes: list[Note] = field(default_factory=list)  # by block; none under LRU
    rankings: list[Ranking] = field(default_factory=list)
    last_rank: int = 0  # given so far
    ghosts: Contents = field(default_factory=Contents)  # under S3-FIFO
    ahead: int = 0  # under SIEVE, the ranking of the blocks that the hand has yet to pass
    hand: int = 0  # and the rank behind which it stands
    part: Part = field(default_factory=Part)  # a user's policy, by address
    tracks_sessions: bool = False  # the policy knows whether a session goes on
    sessions: list[float] = field(default_factory=list)  # by request, what the policy makes of it
    hints: list[float] = field(default_factory=list)  # by request: its retention priority
    goes_on: float = 0.0  # both, while a request frees its blocks
    hint: float = 0.0
    has_host: bool = False
    host: HostTier = field(default_factory=HostTier)
    has_events: bool = False
    log: EventLog = field(default_factory=EventLog)
    num_hashed: int = 0  # blocks that carry a key, in use or free
    buckets: list[Short] = field(default_factory=list)
    bucket_mask: int = 0
    tracks_pins: bool = False  # requests that do not run may hold blocks for a transfer
    pin_counts: list[int] = field(default_factory=list)  # how many of them, by block
    num_hash_aliases: int = 0  # records behind those of the blocks, for further keys of a block
    free_hash_alias: int = NONE
    first_hash_aliases: list[int] = field(default_factory=list)  # by block
    hash_alias_owners: list[int] = field(default_factory=list)  # by card
    num_shared: int = 0  # blocks of windows with several references
    num_seen: list[int] = field(default_factory=list)  # scratch, by block; 0 between steps
    fewest_dead: list[int] = field(default_factory=list)
    python: object = None  # an eviction policy that is not a rule

    @property
    def num_free(self) -> int:
        """Blocks without a reference, cached ones included."""
        return self.num_unhashed + self.num_cached


@dataclass(slots=True)
class KVGroup(Record):
    """Layers that share a block table, and sums over all their tables."""

    index: int = 0
    kind: int = FULL
    window: int = 0  # tokens of a sliding window, retained ones included, or of a chunk
    extra_retained: int = 0  # tokens of it that are kept, but needed by no hit
    reference_window: int = 0  # tokens that R-SWA keeps behind the prompt
    is_cached: bool = True  # its blocks get keys and are looked up
    num_spec_blocks: int = 0  # of states, for drafts
    block_size: int = 0
    slot_bytes: int = 0
    state_bytes: int = 0  # of a block that holds a state, its padding left out
    admission_cap: int = 0  # most blocks a request ever holds at once, 0 for no limit
    keys_per_block: int = 1
    drops_last_block: bool = False  # of a hit, for a drafter that needs what follows it
    has_drafter: bool = False  # its layers may be a drafter's, which lags behind what is computed
    num_used: int = 0  # blocks with a reference
    num_table_blocks: int = 0  # entries of the tables of live requests
    num_internal: int = 0  # slots past a request's last token
    num_retired: int = 0  # slots of ended requests
    num_pinned: int = 0  # blocks that only requests hold that do not run


@dataclass(slots=True)
class LookupSpec(Record):
    """Groups with equal rules, which hit together."""

    kind: int = FULL
    window: int = 0
    extra_retained: int = 0
    block_size: int = 0
    groups: list[int] = field(default_factory=list)
    num_groups: int = 0
    length: int = 0  # found by the lookup under way
    drops_last_block: bool = False  # some of them do
    has_dropped: bool = False  # at the length under look-up


@dataclass(slots=True)
class BlockTable(Record):
    """Logical to physical blocks of one sequence in one group, null blocks first."""

    blocks: list[Short] = field(default_factory=list)
    length: Short = 0
    num_null: Short = 0
    num_offered: Short = 0  # blocks that were offered to the cache, where groups differ in that


@dataclass(slots=True)
class RequestBlocks(Record):
    """A request's part of a paged cache: its block tables, and the keys of its content."""

    tables: list[BlockTable] = field(default_factory=list)  # one per group, or per sequence
    keys: list[int] = field(default_factory=list)
    owner: Short = NONE  # whose keys
    num_keys: Short = 0
    segment: Short = 0  # where the next block to hash begins
    offset: int = 0
    num_blocks: int = 0  # different ones of all sequences, or swapped out
    has_items: bool = False  # some requests have parts that an encoder computes
    items: list[Item] = field(default_factory=list)  # of all requests, as in the trace
    item_offsets: list[int] = field(default_factory=list)
    has_numbers: bool = False  # output tokens are numbered, those dropped included
    numbers: list[int] = field(default_factory=list)  # as in the trace
    number_offsets: list[int] = field(default_factory=list)
    num_cached_tokens: Short = 0  # leading tokens whose blocks have been offered to the cache
    num_processed_tokens: int = 0  # known to be computed when windows were last moved
    dead_bytes: int = 0  # before the windows, in the blocks that they are leaving
    dead_rate: int = 0  # more of them with every token processed
    request: int = NONE  # place of the request that holds it
    retired: bool = False  # its request has ended, and its batch keeps the slots
