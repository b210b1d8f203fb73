"""SGLang's prefix cache: a radix tree over single slots, or over pages of slots.

The rules are in :mod:`kvsim.engines.sglang.rules`; docs/sglang-rules.md describes them. Requests
keep their computed prompts in the tree, where later ones find them token by token (page by page
above a page size of 1). Unlocked leaves are evicted when slots are needed.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from kvsim.engines.sglang.budget import WINDOW_RATIO, split_pool
from kvsim.engines.sglang.kv.host_check import check_host
from kvsim.engines.sglang.kv.radix_check import TreeView, check_tree
from kvsim.engines.sglang.kv.state_check import check_states_held
from kvsim.engines.sglang.kv.window_check import check_windows
from kvsim.engines.sglang.records.radix import Chain, Copy, Link, Node, Piece, Rank, WritePolicy
from kvsim.engines.sglang.records.storage import Told
from kvsim.engines.sglang.server_options import RadixEviction  # noqa: TC001 - the registry reads the annotation
from kvsim.kv.events import init_log
from kvsim.kv.manager import ALLOCATORS, KVCacheConfig
from kvsim.kv.rule_manager import RuleManager
from kvsim.records.kv import KV, RADIX
from kvsim.records.queue import Neighbours
from kvsim.speculation import KEEPS_NO_DRAFTS

if TYPE_CHECKING:
    from kvsim.budget.layout import KVLayout
    from kvsim.engines.sglang.records.radix import Pages, Radix
    from kvsim.records.memory import Memory
    from kvsim.records.request import Request

#: Tokens that SGLang keeps free after a prompt.
SPARE_TOKENS = 6


@ALLOCATORS.register("radix")
class RadixManager(RuleManager):
    """SGLang's radix cache; only ``sglang`` schedules it.

    Parameters
    ----------
    eviction : order in which leaves are evicted
    protected_threshold : for slru: smallest number of hits of a protected node
    tail_threshold, next_prompt_estimate : for tlru: tokens; nodes that start after the longest
        insert + next_prompt_estimate - tail_threshold are evicted first
    """

    rules_of = RADIX
    evidence = "slots of recorded runs of SGLang 0.5.23 come out identical"
    default_scheduler = needs_scheduler = "sglang"
    keeps_states = keeps_unpublished = speculates = True
    ignores = MappingProxyType(
        {
            "watermark": "its scheduler reserves a share of the tokens that requests may generate",
            "max_num_batched_tokens": "chunked_prefill_size bounds the prompts of a step",
            "long_prefill_token_threshold": "chunked_prefill_size bounds the prompts of a step",
            **KEEPS_NO_DRAFTS,
            "max_num_active_seqs": "max_running_requests bounds the running requests",
        }
    )

    def __init__(
        self,
        config: KVCacheConfig,
        *,
        eviction: RadixEviction = "lru",
        protected_threshold: int = 2,
        tail_threshold: int = 0,
        next_prompt_estimate: int = 0,
    ) -> None:
        super().__init__(config)
        self.eviction = eviction
        self._numbers = (protected_threshold, tail_threshold, next_prompt_estimate)
        self.block_size = config.block_size
        self.window, self.token_bytes, self.window_bytes = pool_bytes_of(
            config.layout, hybrid=config.hybrid
        )
        self.token_bytes //= config.num_cache_shards
        slots, self.window_slots = config.num_bytes // self.token_bytes, 0
        if self.window and config.window_slots is not None:
            self.window_slots = config.window_slots
            taken = self.window_slots * self.window_bytes
            slots = (config.num_bytes - taken) // self.token_bytes
        elif self.window:
            slots, self.window_slots = split_pool(
                config.num_bytes,
                token_bytes=self.token_bytes,
                window_bytes=self.window_bytes,
                ratio=WINDOW_RATIO,
                page_size=self.block_size,
            )
        self.num_gpu_blocks = slots // self.block_size
        self.total_bytes = self.pool_size * self.token_bytes + self.window_slots * self.window_bytes
        self.piece_bytes = self.block_size * self.token_bytes

    @property
    def pool_size(self) -> int:
        """Slots, SGLang's max_total_num_tokens."""
        return self.num_gpu_blocks * self.block_size

    def init_state(self, kv: KV, memory: Memory, num_request_blocks: int) -> None:
        kv.manager = self.rules_of
        kv.max_model_len = self.config.max_model_len
        kv.enable_prefix_caching = self.config.enable_prefix_caching
        kv.num_request_blocks = num_request_blocks
        tree = kv.radix
        tree.enabled = self.config.enable_prefix_caching
        tree.token_bytes = self.token_bytes
        tree.rank = int(Rank[self.eviction.upper()])
        tree.protected_threshold, tree.tail_threshold, tree.next_prompt_estimate = self._numbers
        init_tree(tree, memory, self.num_gpu_blocks, self.block_size)
        if self.window:
            tree.window_bytes = self.window_bytes
            init_windows(tree, memory, self.window, self.window_slots // self.block_size)
        if self.config.host_slots:
            policy = int(WritePolicy[self.config.write_policy.upper()])
            init_host(tree, memory, policy, self.config.host_slots // self.block_size)
            if self.config.events:
                kv.hash_block_size = self.block_size
                init_host_events(kv, memory)

    def add_request_blocks(self, kv: KV, memory: Memory, count: int) -> None:
        kv.num_request_blocks += count  # the engine's records of requests hold their pages

    def fill_request_blocks(self, kv: KV, memory: Memory, first: int, stop: int) -> None:
        """Do nothing: the pages of a request are linked to each other."""

    def room_for_map(self, kv: KV, memory: Memory) -> None:
        pages = self.num_gpu_blocks + self.window_slots // self.block_size + 1
        kv.dead_ends, kv.live_ends = memory.floats(pages), memory.floats(pages)
        kv.last_ends, kv.unused = memory.floats(pages), memory.ints(pages)

    def fits(self, request: Request) -> bool:
        longest, prompt = min(self.config.max_model_len, self.pool_size), request.num_prompt_tokens
        return prompt < longest - SPARE_TOKENS and prompt + self.block_size < self.pool_size

    def check_integrity(self) -> None:
        nodes = check_tree(self.state)
        if self.window:
            check_windows(self.state, TreeView(self.state.kv.radix), nodes)
        if self.state.kv.radix.has_states:
            check_states_held(self.state, nodes)
        if self.config.host_slots:
            check_host(self.state, TreeView(self.state.kv.radix), nodes)
        self.usage.check(self.total_bytes)


def pool_bytes_of(layout: KVLayout, *, hybrid: bool) -> tuple[int, int, int]:
    """Return the sliding window, and a token's bytes in the pools of full and of window layers.

    The window is 0 without sliding-window layers, or if all layers keep all tokens. A model has one
    window. A drafter's layers keep all tokens.
    """
    own = [layer for layer in layout.layers if layer.kind == "sliding" and not layer.is_draft]
    window = max((layer.window or 0 for layer in own), default=0) if hybrid else 0
    windowed = [layer.bytes_per_token for layer in own if window]
    total = sum(layer.bytes_per_token for layer in layout.layers)
    return window, total - sum(windowed), sum(windowed)


def init_pages(pages: Pages, memory: Memory, first: int, num_pages: int) -> None:
    """Make ``num_pages`` free pages, one chain of consecutive numbers from ``first``."""
    pages.num_pages = pages.num_left = pages.front_count = num_pages
    pages.first, pages.last = first, first + num_pages - 1
    pages.front_last = pages.last
    pages.links = memory.room(Link, first + num_pages)
    pages.chains = memory.room(Chain, first + num_pages)


def init_windows(tree: Radix, memory: Memory, window: int, num_pages: int) -> None:
    """Add a free pool for sliding-window layers to a tree with its GPU pages."""
    tree.window_pages.page_size = tree.pages.page_size
    init_pages(tree.window_pages, memory, 1, num_pages)
    tree.window, tree.windows = window, memory.ints(tree.pages.num_pages + 1)
    tree.recent_places = memory.room(Neighbours, tree.pages.num_pages + 2)


def init_host(tree: Radix, memory: Memory, policy: int, num_pages: int) -> None:
    """Add free host memory, with pages numbered from 0, to a tree with its GPU pages."""
    most = tree.pages.num_pages + num_pages
    init_pages(tree.host_pages, memory, 0, num_pages)
    tree.write_policy = policy
    tree.host_pieces = memory.room(Piece, num_pages * tree.pages.page_size)
    tree.nodes = memory.room(Node, most + 2)
    tree.queued_places = memory.room(Neighbours, most + 2)
    tree.host_leaves.heap = memory.ints(most + 3)
    for copies in (tree.backups, tree.loads):
        copies.most = tree.pages.num_pages + 1
        copies.rows = memory.room(Copy, copies.most)


def init_host_events(kv: KV, memory: Memory) -> None:
    """Allocate the records of events about copies on the host, for a tree with a host tier."""
    tree = kv.radix
    tree.emits_events, tree.told = True, memory.room(Told, len(tree.nodes) + 1)
    init_log(kv.pool, memory, len(tree.nodes) + 1)


def init_tree(tree: Radix, memory: Memory, num_pages: int, page_size: int) -> None:
    """Make an empty tree over free pages, numbered from 1 on as SGLang's are."""
    tree.pages.page_size = page_size
    init_pages(tree.pages, memory, 1, num_pages)
    tree.pieces = memory.room(Piece, (num_pages + 1) * page_size)
    tree.nodes = memory.room(Node, num_pages + 2)
    tree.leaves.heap = memory.ints(num_pages + 3)
    num_buckets = 1 << max(num_pages // 4, 16).bit_length()
    tree.buckets, tree.bucket_mask = memory.ints(num_buckets), num_buckets - 1
