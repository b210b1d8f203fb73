"""Records of paged memory: blocks, block tables, the pool, and groups of layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from kvsim.records.contents import Contents, HostTier
from kvsim.records.encoder import Item
from kvsim.records.events import EventLog
from kvsim.records.eviction import LRU, Foresight, Note, Ranking
from kvsim.records.part import Part
from kvsim.records.queue import ArrayQueue, Neighbours, Queue
from kvsim.records.record import NONE, Record, Short, Tiny

NULL_BLOCK = 0  # a placeholder that is never allocated
FULL = 0  # the number of full attention; the other kinds are in kvsim.attention


@dataclass(slots=True)
class Block(Record):
    """One block of the pool; the record is small because blocks are accessed at random."""

    ref_cnt: Short = 0
    chain: Short = NONE  # next content in the bucket
    copy: Short = NONE  # next block of this content
    slot: Short = 0  # index in ``BlockPool.line``, while the block is in that queue
    hashed: Annotated[bool, 8] = False
    group: Tiny = 0
    key: int = 0


@dataclass(slots=True)
class BlockPool(Record):
    """Blocks with reference counts, a free queue, and a hash map from content to blocks."""

    blocks: list[Block] = field(default_factory=list)
    places: list[Neighbours] = field(default_factory=list)  # by block in ``cached``; of aliases
    line: ArrayQueue = field(default_factory=ArrayQueue)  # LRU: free blocks with cached content
    num_usable: int = 0  # blocks without the null block
    unhashed: list[int] = field(default_factory=list)  # a stack: the last entry is used next
    num_unhashed: int = 0
    num_cached: int = 0  # free blocks with cached content
    policy: int = LRU
    cached: Queue = field(default_factory=Queue)  # SIEVE: all blocks with a key
    notes: list[Note] = field(default_factory=list)  # by block; empty under LRU
    rankings: list[Ranking] = field(default_factory=list)
    last_rank: int = 0  # the highest rank so far
    ghosts: Contents = field(default_factory=Contents)  # S3-FIFO: keys evicted from its small queue
    ahead: int = 0  # SIEVE: index of the ranking of the blocks ahead of the hand
    hand: int = 0  # SIEVE: rank of the block that the hand passed last
    foresight: Foresight = field(default_factory=Foresight)
    part: Part = field(default_factory=Part)  # a user's policy, called by address
    tracks_sessions: bool = False  # the policy knows whether a session continues
    sessions: list[float] = field(default_factory=list)  # by request: the policy's `goes_on` value
    hints: list[float] = field(default_factory=list)  # by request: its retention priority
    goes_on: float = 0.0  # the values of the request that is freeing its blocks
    hint: float = 0.0
    has_host: bool = False
    host: HostTier = field(default_factory=HostTier)
    has_events: bool = False
    log: EventLog = field(default_factory=EventLog)
    num_hashed: int = 0  # blocks with a key, in use or free
    buckets: list[Short] = field(default_factory=list)
    bucket_mask: int = 0
    tracks_pins: bool = False  # requests that do not run may hold blocks for a transfer
    pin_counts: list[int] = field(default_factory=list)  # by block: such requests that hold it
    num_hash_aliases: int = 0  # records after those of the blocks, for further keys of a block
    free_hash_alias: int = NONE
    first_hash_aliases: list[int] = field(default_factory=list)  # by block
    hash_alias_owners: list[int] = field(default_factory=list)  # by alias: its block
    num_shared: int = 0  # blocks of windows with several references
    short_request: int = NONE  # row of the last request that lacked blocks; see blocks.shortage
    num_short_in_use: int = 0  # most blocks of its hit that other requests hold
    num_seen: list[int] = field(default_factory=list)  # scratch, by block; 0 between steps
    fewest_dead: list[int] = field(default_factory=list)  # scratch, by block
    python: Any = None  # an eviction policy in Python

    @property
    def num_free(self) -> int:
        """Blocks without a reference, cached ones included."""
        return self.num_unhashed + self.num_cached


@dataclass(slots=True)
class KVGroup(Record):
    """Layers that share a block table, and sums over all their tables."""

    index: int = 0
    kind: int = FULL
    sees_all: bool = True  # a hit needs all blocks of the prefix
    has_holes: bool = False  # its tables may have null blocks after a block in use
    is_state: bool = False  # a block holds a state
    caches_states: bool = False  # states at block ends are kept for later requests
    holds_one: bool = False  # a request has one block
    window: int = 0  # tokens of a sliding window plus ``extra_retained``, or of a chunk
    extra_retained: int = 0  # tokens before the window that are kept, but that no hit needs
    reference_window: int = 0  # output tokens that R-SWA keeps
    is_cached: bool = True  # its blocks get keys and are looked up
    num_spec_blocks: int = 0  # blocks of a request for the states of drafts
    block_size: int = 0
    slot_bytes: int = 0
    state_bytes: int = 0  # bytes of a block that holds a state, without its padding
    admission_cap: int = 0  # most blocks a request ever holds at once, 0 for no limit
    keys_per_block: int = 1
    drops_last_block: bool = False  # the last block of a hit is not reused: a drafter lacks it
    has_drafter: bool = False  # its layers may be a drafter's, which lag behind computed tokens
    num_used: int = 0  # blocks with a reference
    num_table_blocks: int = 0  # entries of the tables of live requests
    num_internal: int = 0  # slots past a request's last token
    num_retired: int = 0  # slots of ended requests
    num_pinned: int = 0  # blocks that are held only by requests that do not run


@dataclass(slots=True)
class LookupSpec(Record):
    """Groups with the same attention and block size; a look-up treats them as one."""

    kind: int = FULL
    window: int = 0
    extra_retained: int = 0
    block_size: int = 0
    groups: list[int] = field(default_factory=list)
    num_groups: int = 0
    length: int = 0  # tokens found by the current look-up
    drops_last_block: bool = False  # True if any of its groups does so
    has_dropped: bool = False  # the last block was already dropped at the current length


@dataclass(slots=True)
class BlockTable(Record):
    """The block table of one sequence in one group."""

    blocks: list[Short] = field(default_factory=list)
    length: Short = 0
    num_null: Short = 0  # leading null blocks; some kinds of attention have others
    num_offered: Short = 0  # leading blocks that were offered to the prefix cache


@dataclass(slots=True)
class RequestBlocks(Record):
    """A request's part of a paged cache: its block tables, and the keys of its content."""

    tables: list[BlockTable] = field(default_factory=list)  # one per group, or per sequence
    keys: list[int] = field(default_factory=list)
    owner: Short = NONE  # request of the keys, as a row of the trace
    num_keys: Short = 0
    segment: Short = 0  # the next block to hash begins in this segment, at ``offset``
    offset: int = 0
    num_blocks: int = 0  # distinct blocks of all sequences, or swapped-out blocks
    has_items: bool = False  # some requests have parts that an encoder computes
    items: list[Item] = field(default_factory=list)  # of all requests, as in the trace
    item_offsets: list[int] = field(default_factory=list)
    has_numbers: bool = False  # output tokens are numbered, those dropped included
    numbers: list[int] = field(default_factory=list)  # as in the trace
    number_offsets: list[int] = field(default_factory=list)
    num_cached_tokens: Short = 0  # leading tokens in blocks that were offered to the cache
    num_processed_tokens: int = 0  # tokens known to be computed when windows were last moved
    dead_bytes: int = 0  # bytes before the windows, in the blocks that the windows are leaving
    dead_rate: int = 0  # growth of ``dead_bytes`` per processed token
    request: int = NONE  # index of the request that holds the blocks
    retired: bool = False  # the request has ended or is not running, and its blocks stay
