"""Records of SGLang's prefix cache: pages, their locks, and the radix tree over them.

Each page links to the next page of its node, of its request, or of the free pages. Nodes and
requests record their first page, their last page and the number of pages. So splitting a node,
turning a request's pages into a leaf, and freeing a leaf move no data. Consecutive tokens of one
content are recorded once. The root is node 0; elsewhere 0 means no node, so untouched memory is an
empty tree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from kvsim.engines.sglang.records.states import States
from kvsim.engines.sglang.records.storage import Told
from kvsim.records.queue import Neighbours, Queue
from kvsim.records.record import Record, Short


class Rank(IntEnum):
    """The rank by which leaves are evicted; SGLang's radix_eviction_policy."""

    LRU = 0
    LFU = 1
    FIFO = 2
    MRU = 3
    FILO = 4
    SLRU = 5
    PRIORITY = 6
    TLRU = 7
    HPT = 8


LRU, LFU, FIFO, MRU, FILO, SLRU, PRIORITY, TLRU, HPT = map(int, Rank)


class WritePolicy(IntEnum):
    """The rule that copies nodes to the host; NO_HOST is a tree without a host tier."""

    NO_HOST = 0
    WRITE_THROUGH = 1
    WRITE_THROUGH_SELECTIVE = 2
    WRITE_BACK = 3


NO_HOST, WRITE_THROUGH, WRITE_THROUGH_SELECTIVE, WRITE_BACK = map(int, WritePolicy)


@dataclass(slots=True)
class Link(Record):
    """The page after a page: the next number, or ``jump`` pages further.

    In untouched memory the pages follow each other by number.
    """

    jump: Short = 0


@dataclass(slots=True)
class Chain(Record):
    """Free pages that were freed together, recorded at the first one."""

    last: Short = 0
    count: Short = 0


@dataclass(slots=True)
class Pages(Record):
    """A page allocator: a queue of chains of free pages, and pages held back in a group.

    Pages are allocated in the order of their links, and freed as a chain. Both operations visit
    only the ends of a chain, unless only a part of it is allocated.
    """

    page_size: int = 1
    num_pages: int = 0
    links: list[Link] = field(default_factory=list)  # by page, free or not
    chains: list[Chain] = field(default_factory=list)  # by first page; not for the front chain
    first: int = 0  # next page to allocate
    last: int = 0
    num_left: int = 0
    front_last: int = 0  # last page of the front chain
    front_count: int = 0
    is_grouping: bool = False
    group_first: int = 0
    group_last: int = 0
    num_grouped: int = 0
    logs: bool = False  # log the freed blocks of pages
    log: list[int] = field(default_factory=list)  # number of pages, and first page, per block
    num_logged: int = 0

    @property
    def num_unused_slots(self) -> int:
        return self.num_left * self.page_size


@dataclass(slots=True)
class Piece(Record):
    """Consecutive tokens of one content, recorded at the slot of the first one.

    A reader continues after these tokens at the slot ``behind``. The last piece of a node may go
    beyond the node.
    """

    content: int = 0
    index: Short = 0
    num_tokens: Short = 0
    behind: Short = 0


@dataclass(slots=True)
class Node(Record):
    """Tokens from ``start`` to ``end`` that all requests through the node share."""

    start: int = 0
    end: int = 0
    page: int = 0  # first page
    last_page: int = 0
    parent: int = 0
    first_child: int = 0
    last_child: int = 0
    next: int = 0  # sibling
    previous: int = 0
    key: int = 0  # hash of its parent and its first page
    chain: int = 0  # next node in the bucket, or next free record
    num_locks: int = 0
    last_access: int = 0
    created: int = 0
    num_hits: int = 0
    priority: int = 0
    reach: int = 0  # most tokens of an insert through it
    place: int = 0  # index in a heap of evictable leaves, from 1 on; 0 for none
    number: int = 0  # order among its siblings
    row: Short = 0  # trace row of a request with the tokens up to its end, for events
    weight: int = 0  # waiting requests that match it or a node below it
    is_tombstone: bool = False  # it has no sliding-window slots
    num_window_locks: int = 0
    edge: int = 0  # mark of locks whose window starts in this node; 0 for none
    state: Short = 0  # slot of the state at its end; 0 for none
    num_state_locks: Short = 0
    num_here: int = 0  # children with slots on the GPU, if there is a host tier
    on_host_only: bool = False
    has_copy: bool = False
    host_page: int = 0  # first page of its copy
    host_last: int = 0
    num_host_locks: int = 0
    is_pending: bool = False  # its copy to the host is in flight
    is_queued: bool = False  # in the queue of copies that write_back may drop

    @property
    def span(self) -> int:
        """Number of tokens of the node."""
        return self.end - self.start


@dataclass(slots=True)
class Leaves(Record):
    """A heap of evictable leaves, from index 1 on."""

    heap: list[int] = field(default_factory=list)
    count: int = 0


@dataclass(slots=True)
class Copy(Record):
    """A copy in flight between GPU and host, and the node that it locks."""

    node: int = 0
    start: int = 0  # start of the node when it was locked; later splits move its start
    top: int = 0  # first token that is loaded
    time: float = 0.0  # end of the copy, s


@dataclass(slots=True)
class Copies(Record):
    """Copies in one direction, in a ring with one entry more than the GPU has pages."""

    rows: list[Copy] = field(default_factory=list)
    most: int = 0
    first: int = 0
    count: int = 0


@dataclass(slots=True)
class Radix(Record):
    """The tree, its pages, and the result of the last walk through it."""

    enabled: bool = True
    pages: Pages = field(default_factory=Pages)
    pieces: list[Piece] = field(default_factory=list)  # by slot; of the tree's tokens
    nodes: list[Node] = field(default_factory=list)
    num_nodes: int = 1  # created so far, the root included
    free_node: int = 0  # first free record of a dropped node
    num_live_nodes: int = 0
    num_children: int = 0  # added to any node so far
    buckets: list[int] = field(default_factory=list)
    bucket_mask: int = 0
    leaves: Leaves = field(default_factory=Leaves)
    clock: int = 0  # logical time; every use advances it
    num_evictable: int = 0  # tokens
    num_protected: int = 0
    ahead: int = 0  # 1 if keys are pairs of a token and the next one (EAGLE)
    window: int = 0  # tokens that the layers with a sliding window see; 0 without such layers
    window_pages: Pages = field(default_factory=Pages)  # separate pool of these layers
    windows: list[int] = field(default_factory=list)  # window page of each page; 0 for none
    has_states: bool = False  # the model keeps a state per request, and nodes may hold states
    states: States = field(default_factory=States)
    recent: Queue = field(default_factory=Queue)  # nodes with window slots or a state, latest first
    recent_places: list[Neighbours] = field(default_factory=list)  # of each node
    window_evictable: int = 0  # tokens of nodes with window slots
    window_protected: int = 0
    num_edges: int = 0  # marks assigned so far
    num_moved: int = 0  # changes of slots of nodes that stay in the tree
    write_policy: int = NO_HOST
    host_pages: Pages = field(default_factory=Pages)
    host_pieces: list[Piece] = field(default_factory=list)
    host_leaves: Leaves = field(default_factory=Leaves)
    queued: Queue = field(default_factory=Queue)  # nodes whose copies write_back drops first
    queued_places: list[Neighbours] = field(default_factory=list)  # of each node
    backups: Copies = field(default_factory=Copies)
    loads: Copies = field(default_factory=Copies)
    now: float = 0.0
    copy_time: float = 0.0  # s per copy
    token_time: float = 0.0  # s per token of a copy
    num_sent: int = 0  # tokens copied to the host so far
    emits_events: bool = False  # events for nodes that were copied to the host
    told: list[Told] = field(default_factory=list)  # copied since the last pass
    num_told: int = 0
    out_free: float = 0.0  # when the link to the host is free, s
    in_free: float = 0.0  # when the link from the host is free, s
    held_until: float = 0.0  # the next batch starts no earlier
    loaded_at: float = 0.0  # the next batch ends no earlier
    rank: int = LRU
    protected_threshold: int = 2  # slru: hits of a protected node
    tail_threshold: int = 0  # tlru
    next_prompt_estimate: int = 0

    segment: int = 0  # position of the walk: segment of the request,
    offset: int = 0  # and token in it
    node: int = 0  # last node of the last match or insert, on the GPU
    best: int = 0  # last node of the last match, on the GPU or the host
    num_found: int = 0  # tokens up to ``node``
    num_same: int = 0  # tokens that the last step down found equal in the child
    num_walked: int = 0  # tokens that the last match passed, usable or not
    page: int = 0  # first own page of the request that inserts
    last_page: int = 0  # its last own page
    before_last: int = 0  # the page before that one; 0 if unknown
    num_pages: int = 0  # number of its own pages
    dead: int = 0  # its first tokens, which have no window slots

    token_bytes: int = 0  # bytes of a token in full-attention layers
    window_bytes: int = 0  # bytes of a token in sliding-window layers
    num_own_pages: int = 0  # pages of requests outside the tree
    num_own_tokens: int = 0
    num_slid_tokens: int = 0  # these tokens that have no window slots
    num_internal: int = 0  # slots in these pages that are never used
